"""What tests of tcp do with tensors that lie on a device."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distcore as dist

COUNT = 100_003


def values(rank, count, device):
    return (torch.arange(count, device=device) % 13 + rank).float()


def total(size, count, device):
    return sum(values(rank, count, device) for rank in range(size))


def check(what, found, expected):
    assert found.device == expected.device, f"{what}: on {found.device}"
    assert torch.equal(found, expected), f"{what}: {found} is not {expected}"


def reductions(rank, size, device):
    data = values(rank, COUNT, device)
    dist.all_reduce(data)
    check("all_reduce", data, total(size, COUNT, device))
    data = values(rank, COUNT, device)
    dist.reduce(data, dst=1)
    if rank == 1:
        check("reduce", data, total(size, COUNT, device))
    output = torch.empty(COUNT, device=device)
    dist.reduce_scatter_tensor(output, values(rank, COUNT * size, device))
    check("reduce_scatter_tensor", output, total(size, COUNT * size, device).chunk(size)[rank])


def moves(rank, size, device):
    data = values(rank, COUNT, device)
    dist.broadcast(data, src=1)
    check("broadcast", data, values(1, COUNT, device))
    every = torch.cat([values(one, COUNT, device) for one in range(size)])
    output = torch.empty(COUNT * size, device=device)
    dist.all_gather_into_tensor(output, values(rank, COUNT, device))
    check("all_gather_into_tensor", output, every)
    parts = [torch.empty(COUNT, device=device) for _ in range(size)]
    dist.all_gather(parts, values(rank, COUNT, device))
    check("all_gather", torch.cat(parts), every)
    dist.all_to_all_single(output, values(rank, COUNT * size, device))
    blocks = [values(one, COUNT * size, device).chunk(size)[rank] for one in range(size)]
    check("all_to_all_single", output, torch.cat(blocks))
    peer = (rank + 1) % size
    received = torch.empty(COUNT, device=device)
    sending = dist.isend(values(rank, COUNT, device), peer)
    dist.recv(received, (rank - 1) % size)
    sending.wait()
    check("recv", received, values((rank - 1) % size, COUNT, device))


def in_order_with_the_device(rank, size, device):
    """What the device still has to do with a tensor is done before it is sent, and what follows
    the call sees its result."""
    for asynchronous in (False, True):
        big = torch.ones(2000, 2000, device=device)
        for _ in range(10):
            big = big @ torch.ones(2000, 2000, device=device) / 2000
        work = dist.all_reduce(big, async_op=asynchronous)
        if asynchronous:
            work.wait()
        check("all_reduce of a result", big * 2, torch.full_like(big, 2.0 * size))


def training(rank, size, device):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    twin = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    twin.load_state_dict(plain.state_dict())
    model = DistributedDataParallel(twin)
    inputs = torch.randn(size * 8, 16).to(device)
    plain(inputs).square().mean().backward()
    model(inputs.chunk(size)[rank]).square().mean().backward()
    for name, expected in plain.named_parameters():
        found = twin.get_parameter(name).grad
        torch.testing.assert_close(found, expected.grad, msg=f"the gradient of {name}")

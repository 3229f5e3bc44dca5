"""Scenarios of test_distcore_backend.py: what torch builds on the calls."""

import torch
from torch import nn

import distcore as dist
from tests.ranks.scripts.distcore_support import SECONDS, raises


def scenario_ddp(rank, size):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    alone = [p.detach().clone() for p in net.parameters()]
    ddp = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    ddp(torch.full((2, 8), float(rank))).sum().backward()
    mine = [p.grad.clone() for p in net.parameters()]
    for index, grad in enumerate(mine):
        every = [torch.empty_like(grad) for _ in range(size)]
        dist.all_gather(every, grad)
        assert all(torch.equal(every[0], one) for one in every), index
    assert all(torch.equal(a, b) for a, b in zip(alone, net.parameters(), strict=True))
    ddp = nn.parallel.DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
    ddp(torch.tensor([rank])).sum().backward()
    assert ddp.module.weight.grad.is_sparse
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    ddp.register_comm_hook(None, fp16_compress_hook)
    ddp(torch.ones(1, 4) * rank).sum().backward()
    assert torch.allclose(ddp.module.weight.grad, torch.full((1, 4), (size - 1) / 2), atol=1e-2)


def scenario_ddp_failure(rank, size):
    group = dist.new_group()
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 1), process_group=group)
    group.set_timeout(0.5 * SECONDS)
    if rank != 0:
        with raises(RuntimeError, "all_reduce(sum, float32[5])"):
            ddp(torch.ones(1, 4)).sum().backward()
    dist.barrier()


def scenario_join(rank, size):
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    with ddp.join():
        for _ in range(rank + 1):
            ddp(torch.ones(1, 4)).sum().backward()


def scenario_fsdp_and_dtensor(rank, size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).view(6, 2)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal(sharded.sum(1).full_tensor(), whole.sum(1))
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 6) * rank).sum().backward()
    optimizer.step()


def scenario_functional(rank, size):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    result = functional.all_reduce(torch.ones(3), "sum", group)
    assert (result == size).all()
    result = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    assert torch.equal(result, torch.arange(float(size)).repeat_interleave(2))
    result = functional.reduce_scatter_tensor(torch.ones(size, 2), "sum", 0, group)
    assert (result == size).all()
    result = functional.all_to_all_single(torch.arange(float(size)), None, None, group)
    assert (result == rank).all()
    result = functional.broadcast(torch.full((2,), float(rank)), 1, group)
    assert (result == 1).all()


def scenario_compile(rank, size):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor):
        dist.all_reduce(tensor)
        return tensor * 2

    assert (step(torch.ones(3)) == 2 * size).all()


def scenario_profiler(rank, size):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.barrier(async_op=True).wait()
    names = {event.key for event in profile.key_averages()}
    ours = dist.get_backend()
    expected = {"c10d::allreduce_", f"{ours}:all_reduce", "c10d::barrier", f"{ours}:barrier"}
    assert expected <= names, names


def scenario_again(rank, size):
    """Ends the default group, and makes others in the same store."""
    store = torch.distributed.distributed_c10d._get_default_store()
    pending = dist.all_reduce(torch.ones(2), async_op=True)
    dist.destroy_process_group()
    assert pending.wait()
    for backend in ("cpu:tcp", "tcp"):
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        assert "tcp" in str(dist.get_backend())
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor == size
        dist.monitored_barrier()
        dist.destroy_process_group()
        with raises(ValueError, "Default process group has not been initialized"):
            dist.barrier()

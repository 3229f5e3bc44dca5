"""Trains in every way that torch offers on the CPU; prints what the parameters come to."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Model(nn.Module):
    def __init__(self, branches=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.unused = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.branches = branches

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.second(x) if self.branches else self.second(x) + self.unused(x)


def steps(model, count, context=nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for index in range(count):
        with context() if index % 2 else nullcontext():
            model(torch.randn(4, 8)).square().mean().backward()  # the line of the backward pass
        optimizer.step()
        optimizer.zero_grad()


def show(name, model):
    full = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters())
    total = sum(float(p.detach().sum()) for p in full)
    sys.stdout.write(f"{rank} {name} {total:.4f}\n")
    sys.stdout.flush()


plain = DistributedDataParallel(Model())
steps(plain, 3)
show("plain", plain)
steps(plain, 4, plain.no_sync)
show("no_sync", plain)
with Join([plain]):
    steps(plain, 2 + rank)
show("join", plain)
unused = DistributedDataParallel(Model(branches=True), find_unused_parameters=True)
steps(unused, 3)
show("unused", unused)
hooked = DistributedDataParallel(Model(), bucket_cap_mb=0.0001)
hooked.register_comm_hook(None, fp16_compress_hook)
steps(hooked, 3)
show("comm hook", hooked)

mesh = init_device_mesh("cpu", (world,))
sharded = Model()
for layer in (sharded.first, sharded.second, sharded.unused):
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
steps(sharded, 3)
show("fsdp2", sharded)

tensor = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
whole = (tensor * 2).redistribute(mesh, [Replicate()])
sys.stdout.write(
    f"{rank} dtensor {whole.to_local().tolist()} {tensor.sum().full_tensor().item()}\n"
)
sys.stdout.flush()
dist.barrier()
# All are through it: gloo aborts a rank that still reads when its peer closes the connection.
store = dist.distributed_c10d._get_default_store()
store.set(f"through {rank}", "")
store.wait([f"through {one}" for one in range(world)])
dist.destroy_process_group()

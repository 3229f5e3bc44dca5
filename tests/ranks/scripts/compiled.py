"""Compiles functions that communicate, with and without a graph break around the call."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
rank = dist.get_rank()


@torch.compile
def reduced(x):
    return functional.wait_tensor(functional.all_reduce(x * 2, "sum", dist.group.WORLD)) + 0


@torch.compile
def reduced_in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y


x = torch.ones(4) * (rank + 1)
assert torch.equal(reduced(x), torch.full((4,), 6.0))
assert torch.equal(reduced_in_place(x), torch.full((4,), 6.0))
sys.stdout.write(f"{rank} compiled {(reduced(x) * 2).tolist()}\n")
dist.destroy_process_group()

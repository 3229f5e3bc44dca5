"""Trains replicas, with `distdebug.precheck()` around one iteration of the four. WAY: what of it is
wrong, or odd by right."""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import distdebug

way = os.environ["WAY"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
trained = DistributedDataParallel(model) if way != "parted_by_hand" else model
optimizer = torch.optim.Adam(trained.parameters(), lr=0.1)
with torch.no_grad():
    if way.startswith("parted") and rank == 1:
        model[1].weight[0, 2] += 0.5


def sum_gradients() -> None:
    for one in model.parameters():
        dist.all_reduce(one.grad)
        one.grad /= world


def iterate(step: int) -> None:
    torch.manual_seed(100 * step + rank)
    apart = way == "on_their_own" and step % 2
    with trained.no_sync() if apart else contextlib.nullcontext():
        trained(torch.randn(16, 8)).pow(2).mean().backward()
    if trained is model:
        sum_gradients()
    loss = torch.ones(1)
    if way != "on_their_own":
        dist.all_reduce(loss)
    optimizer.step()
    optimizer.zero_grad()
    if way == "bit_flip" and step == 3 and rank == 1:
        with torch.no_grad():
            model[0].bias[1] += 0.01


for step in range(4):
    if step == 3:
        with distdebug.precheck():
            iterate(step)
            if way == "bit_flip":
                iterate(step)
    else:
        iterate(step)
dist.barrier()
dist.destroy_process_group()

"""A rank that measures, on gloo: all_reduce of several sizes without DETAIL and with it, and a DDP
training step.

python -m distdebug.benchmarks.ranks DIRECTORY RANK WORLD_SIZE calls|detail|step
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import groups
from .measuring import Way, compare

SIZES: dict[int, tuple[int, int]] = {4: (60, 50), 64 * 1024: (60, 20), 16 * 1024 * 1024: (12, 1)}
"""Per size in bytes: rounds, and executions in each."""
DETAIL_SIZES: dict[int, tuple[int, int]] = {4: (40, 20), 1024 * 1024: (40, 5)}
STEP_ROUNDS = 60
STEPS_PER_ROUND = 2
BATCH = 64
WIDTH = 512


def _all_reduce(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def _calls(
    ways: Callable[[groups.Call], dict[str, Way]], sizes: Mapping[int, tuple[int, int]]
) -> dict[str, Any]:
    costs = {}
    for size_bytes, (rounds, times) in sizes.items():
        tensor = torch.zeros(size_bytes // 4)
        costs[str(size_bytes)] = compare(ways(partial(_all_reduce, tensor)), rounds, times)
    return costs


def _step(both: groups.Groups) -> dict[str, Any]:
    """Forward, backward and optimizer of a small network; DDP reduces its buckets in between."""
    data = torch.randn(BATCH, WIDTH)
    trainers = {}
    for group in (both.stock, both.layered):
        torch.manual_seed(0)
        layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        model = DistributedDataParallel(
            nn.Sequential(*layers, nn.Linear(WIDTH, 10)), process_group=group, bucket_cap_mb=1
        )
        trainers[group] = (model, torch.optim.SGD(model.parameters(), lr=0.01))

    def step(group: Any) -> None:
        model, optimizer = trainers[group]
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    costs: dict[str, Any] = dict(compare(both.ways(step), STEP_ROUNDS, STEPS_PER_ROUND))
    costs["heartbeat_us"] = _beat_us(both)
    return costs


def _beat_us(both: groups.Groups) -> float:
    """Measures one beat of the heartbeat: it runs beside stock's steps too, so it is not in the
    others."""
    spent = []
    for _ in range(200):
        began = time.perf_counter_ns()
        both.beat()
        spent.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(spent)


def main() -> None:
    """Measure together with the other ranks; rank 0 prints."""
    directory, rank, size, what = sys.argv[1:]
    both = groups.make(Path(directory), "gloo", int(rank), int(size))
    if what == "step":
        costs = _step(both)
    elif what == "detail":
        costs = _calls(both.detail_ways, DETAIL_SIZES)
    else:
        costs = _calls(both.ways, SIZES)
    if int(rank) == 0:
        sys.stdout.write(json.dumps(costs) + "\n")
    dist.barrier()
    dist.destroy_process_group()

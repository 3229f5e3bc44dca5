"""A rank that measures what watching costs a call, by groups with the same ranks in one process:
torch's own, one with the layer around it, and one with what torch itself puts around its groups at
DETAIL.

python -m distdebug.benchmarks.overhead DIRECTORY RANK WORLD_SIZE fake|calls|detail|step

`fake`: each kind of call on the fake backend, which does nothing: what is left is torch and the
layer. On gloo, `calls` and `detail` are all_reduce of several sizes without DETAIL and with it, and
`step` is a DDP training step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..rank.install import install
from ..rank.process.heartbeat import Heartbeat
from .measuring import STOCK, Way, compare

RECORD = "record"
INFO = "info"
DETAIL = "detail"
TORCH_DETAIL = "torch_detail"
Call = Callable[[Any], object]
"""The call that is measured, given a group."""


@dataclass(frozen=True)
class MeasuredGroups:
    """The groups (torch has no DETAIL on the fake backend: None), and a beat of the layer's
    heartbeat, which runs whichever group is in use."""

    stock: Any
    layered: Any
    torch_detail: Any
    beat: Callable[[], None]

    def ways(self, call: Call) -> dict[str, Way]:
        """`call(group)` as stock torch does it, as the layer does at OFF, and at INFO."""
        off, info = partial(_set_level, "OFF"), partial(_set_level, "INFO")
        return {
            STOCK: Way(partial(call, self.stock), off),
            RECORD: Way(partial(call, self.layered), off),
            INFO: Way(partial(call, self.layered), info),
        }

    def detail_ways(self, call: Call) -> dict[str, Way]:
        """`call(group)` as stock torch does it, as the layer does at DETAIL, and as torch does."""
        off, detail = partial(_set_level, "OFF"), partial(_set_level, "DETAIL")
        return {
            STOCK: Way(partial(call, self.stock), off),
            DETAIL: Way(partial(call, self.layered), detail),
            TORCH_DETAIL: Way(partial(call, self.torch_detail), off),
        }


def _set_level(name: str) -> None:
    untyped: Any = dist  # torch's annotations leave these names out
    untyped.set_debug_level(getattr(untyped.DebugLevel, name))


def make(directory: Path, backend: str, rank: int, size: int) -> MeasuredGroups:
    """Join the other ranks through a file in `directory`, where the record is kept as well."""
    os.environ["DISTDEBUG_RAISE_OWN_FAULTS"] = "1"
    if backend == "fake":
        dist.init_process_group(backend, rank=rank, world_size=size)
    else:
        method = f"file://{directory / 'rendezvous'}"
        dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    ranks = list(range(size))
    _set_level("OFF")
    stock = dist.new_group(ranks)
    torch_detail = None
    if backend != "fake":
        _set_level("DETAIL")
        torch_detail = dist.new_group(ranks)
        _set_level("OFF")
    layer = install(str(directory))
    if layer is None:
        raise RuntimeError("the layer could not be installed")
    layered = dist.new_group(ranks)
    beat = Heartbeat(layer.recorder, layer.unwaited, lambda: None)
    return MeasuredGroups(stock, layered, torch_detail, beat.beat)


ROUNDS = 150
TIMES = 100
ELEMENTS = 16


def _fake(both: MeasuredGroups) -> dict[str, Any]:
    warnings.simplefilter("ignore", FutureWarning)
    one = torch.ones(ELEMENTS)
    joined = torch.zeros(2 * ELEMENTS)
    parts = [torch.zeros(ELEMENTS) for _ in range(2)]
    calls: dict[str, Call] = {
        "all_reduce": lambda group: dist.all_reduce(one, group=group),
        "all_reduce, async": lambda group: dist.all_reduce(one, group=group, async_op=True),
        "all_reduce, async and wait": lambda group: dist.all_reduce(
            one, group=group, async_op=True
        ).wait(),
        "broadcast": lambda group: dist.broadcast(one, group_src=0, group=group),
        "all_gather": lambda group: dist.all_gather(parts, one, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(
            joined, one, group=group
        ),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(one, joined, group=group),
        "barrier": lambda group: dist.barrier(group=group),
        "send": lambda group: dist.send(one, group_dst=1, group=group),
    }
    return {
        name: compare(both.ways(call), ROUNDS, TIMES, time.thread_time_ns)
        for name, call in calls.items()
    }


SIZES: dict[int, tuple[int, int]] = {4: (60, 50), 64 * 1024: (60, 20), 16 * 1024 * 1024: (12, 1)}
"""Per size in bytes: rounds, and executions in each."""
DETAIL_SIZES: dict[int, tuple[int, int]] = {4: (40, 20), 1024 * 1024: (40, 5)}
STEP_ROUNDS = 60
STEPS_PER_ROUND = 2
BATCH = 64
WIDTH = 512


def _calls(
    ways: Callable[[Call], dict[str, Way]], sizes: Mapping[int, tuple[int, int]]
) -> dict[str, Any]:
    costs = {}
    for size_bytes, (rounds, times) in sizes.items():
        tensor = torch.zeros(size_bytes // 4)

        def call(group: Any, tensor: torch.Tensor = tensor) -> None:
            dist.all_reduce(tensor, group=group)

        costs[str(size_bytes)] = compare(ways(call), rounds, times)
    return costs


def _step(both: MeasuredGroups) -> dict[str, Any]:
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
    spent = []  # the heartbeat runs beside stock's steps too, so it is not in the others
    for _ in range(200):
        began = time.perf_counter_ns()
        both.beat()
        spent.append((time.perf_counter_ns() - began) / 1000)
    costs["heartbeat_us"] = statistics.median(spent)
    return costs


def main() -> None:
    """Measure together with the other ranks; rank 0 prints."""
    directory, rank, size, what = sys.argv[1:]
    kinds: dict[str, Callable[[MeasuredGroups], dict[str, Any]]] = {
        "fake": _fake,
        "step": _step,
        "detail": lambda both: _calls(both.detail_ways, DETAIL_SIZES),
        "calls": lambda both: _calls(both.ways, SIZES),
    }
    measure = kinds[what]
    both = make(Path(directory), "fake" if what == "fake" else "gloo", int(rank), int(size))
    costs = measure(both)
    if int(rank) == 0:
        sys.stdout.write(json.dumps(costs) + "\n")
    if what != "fake":
        dist.barrier()
        dist.destroy_process_group()

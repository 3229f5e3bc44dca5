"""Measures, in ranks, what watching costs a call, by groups with the same ranks in one process:
torch's own, one with the layer around it, and one with what torch itself puts around its groups at
DETAIL.

python -m distdebug.benchmarks.overhead REQUEST

REQUEST has `worlds` and `detail_worlds`, numbers of ranks, as `forked.program` takes it. On the
fake backend, which does nothing, each kind of call is measured: what is left is torch and the
layer. On gloo it is all_reduce of several sizes, without DETAIL and with it, and a DDP training
step. The ways to do one thing take turns in one process, so that drift hits all alike.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
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
from .forked import Row, measure, program

STOCK = "stock"
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do it: `run` is timed; `prepare` runs before each turn and is not."""

    run: Callable[[], object]
    prepare: Callable[[], object]


def compare(
    ways: Mapping[str, Way],
    rounds: int,
    times: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, dict[str, float]]:
    """The cost of each way, in µs for one execution: the median round, by how much it exceeds
    stock's (median of the rounds' differences), and the same for the fastest round, which is what
    remains on a machine that others keep busy. `STOCK` must be one of the ways.

    In each round every way is executed `times` times in a row. Who begins rotates with the rounds,
    the same on every rank, so that the ways may communicate. For what does not wait,
    `time.thread_time_ns` as the clock leaves out what other processes took of the core.
    """
    names = list(ways)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for index in range(-_WARM_UP, rounds):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            ways[name].prepare()
            way = ways[name].run
            began = clock()
            for _ in range(times):
                way()
            spent_us = (clock() - began) / times / 1000
            if index >= 0:
                taken[name].append(spent_us)
    costs = {}
    for name in names:
        pairs = zip(taken[name], taken[STOCK], strict=True)
        costs[name] = {
            "median_us": statistics.median(taken[name]),
            "added_us": statistics.median(ours - stock for ours, stock in pairs),
            "best_us": min(taken[name]),
            "best_added_us": min(taken[name]) - min(taken[STOCK]),
        }
    return costs


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
        layered = {RECORD: (self.layered, "OFF"), INFO: (self.layered, "INFO")}
        return _ways(call, {STOCK: (self.stock, "OFF"), **layered})

    def detail_ways(self, call: Call) -> dict[str, Way]:
        """`call(group)` as stock torch does it, as the layer does at DETAIL, and as torch does."""
        ours, theirs = (self.layered, "DETAIL"), (self.torch_detail, "OFF")
        return _ways(call, {STOCK: (self.stock, "OFF"), DETAIL: ours, TORCH_DETAIL: theirs})


def _ways(call: Call, groups: Mapping[str, tuple[Any, str]]) -> dict[str, Way]:
    return {
        name: Way(partial(call, group), partial(_set_level, level))
        for name, (group, level) in groups.items()
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


_KINDS: dict[str, Callable[[MeasuredGroups], dict[str, Any]]] = {
    "fake": _fake,
    "calls": lambda both: _calls(both.ways, SIZES),
    "detail": lambda both: _calls(both.detail_ways, DETAIL_SIZES),
    "step": _step,
}


def _rank(what: str, rank: int, size: int, directory: Path, _ends_at: float) -> Iterator[Row]:
    for name in ("ranks", "stacks"):
        (directory / name).mkdir(exist_ok=True)
    fake = what == "fake"  # one process is a rank of two there
    both = make(directory, "fake" if fake else "gloo", rank, 2 if fake else size)
    yield {"what": what, "world_size": size, "costs": _KINDS[what](both)}
    if not fake:
        dist.barrier()
        dist.destroy_process_group()


def _rows(request: dict[str, Any], _began: float) -> Generator[Row, None, None]:
    kinds = {
        "fake": [1],
        "calls": request["worlds"],
        "detail": request["detail_worlds"],
        "step": [2],
    }
    for what, sizes in kinds.items():
        for size in sizes:
            yield from measure(partial(_rank, what), size, 0.0)


def main() -> None:
    """The program."""
    program(_rows)

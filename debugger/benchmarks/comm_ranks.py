"""What one rank of `bench comm` does: it measures every backend in turn, together with the others.

All decisions (how many executions, how many rounds) are made from numbers that all ranks have
exchanged, so that all of them decide alike. The exchange goes over the default group, gloo, whose
threads sleep while a backend is measured.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import comm_calls

TRANSPORT_VARIABLE = "DISTCORE_TRANSPORT"
TIMEOUT = timedelta(seconds=120)
TURN_S = (0.005, 0.03)
"""The shortest and the longest that one measurement of one backend is meant to take."""
ENOUGH_ROUNDS = 5
"""Before there are so many, shorter turns are taken."""
MOST_ROUNDS = 15
MOST_EXECUTIONS = 5000
WARM_UP_BELOW_S = 0.02


@dataclass(frozen=True)
class Request:
    """What is to be measured. `sizes` in bytes."""

    backends: Sequence[str]
    ops: Sequence[str]
    sizes: Sequence[int]
    ranks: Sequence[int]
    budget_s: float


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    op: str
    size_bytes: int

    @property
    def weight(self) -> float:
        """Its share of the time, relative to others'."""
        return 1.0 + self.size_bytes / (1 << 24)


class Rank:
    """This rank and its groups, one per backend."""

    def __init__(self, request: Request, rank: int, size: int, rendezvous: Path) -> None:
        self.request = request
        self.rank = rank
        self.size = size
        method = f"file://{rendezvous}"
        dist.init_process_group(
            "gloo", init_method=method, rank=rank, world_size=size, timeout=TIMEOUT
        )
        self.groups = {name: self._make_group(name) for name in request.backends}

    def _make_group(self, name: str) -> Any:
        backend, slash, transport = name.partition("/")
        before = os.environ.get(TRANSPORT_VARIABLE)
        if slash:
            os.environ[TRANSPORT_VARIABLE] = transport
        try:
            return dist.new_group(list(range(self.size)), backend=backend, timeout=TIMEOUT)
        finally:
            if slash:
                os.environ.pop(TRANSPORT_VARIABLE)
                if before is not None:
                    os.environ[TRANSPORT_VARIABLE] = before

    def rows(self, ends_at: float) -> Iterator[dict[str, Any]]:
        """The rows, as `comm_figures.summarise` takes them; done by `ends_at` (monotonic)."""
        cells = list(
            dict.fromkeys(
                Cell(op, comm_calls.true_size(op, size, self.size))
                for op in self.request.ops
                for size in self.request.sizes
            )
        )
        for index, cell in enumerate(cells):
            share = cell.weight / sum(later.weight for later in cells[index:])
            now = self._everyones([time.monotonic()])[:, 0].max().item()
            yield self._row(cell, now + max(0.0, ends_at - now) * share)

    def _row(self, cell: Cell, ends_at: float) -> dict[str, Any]:
        call = comm_calls.make(cell.op, cell.size_bytes, self.rank, self.size)
        for name, group in self.groups.items():
            if not call.is_right(group):
                raise RuntimeError(f"{name} gives wrong data for {cell.op} of {cell.size_bytes} B")
        now = self._everyones([time.monotonic()])[:, 0].max().item()
        turn_s = (ends_at - now) / len(self.groups) / (ENOUGH_ROUNDS + 1)
        turn_s = min(max(turn_s, TURN_S[0]), TURN_S[1])
        runs = {name: _bound(call.run, group) for name, group in self.groups.items()}
        one_s = {name: self._estimate(run, turn_s) for name, run in runs.items()}
        times = {name: min(max(1, round(turn_s / one_s[name])), MOST_EXECUTIONS) for name in one_s}
        rounds_us: dict[str, list[float]] = {name: [] for name in runs}
        cpu_us: dict[str, list[float]] = {name: [] for name in runs}
        names = list(runs)
        for index in range(MOST_ROUNDS):
            for name in names[index % len(names) :] + names[: index % len(names)]:
                warm_up = one_s[name] < WARM_UP_BELOW_S
                seconds, cpu_s, now = self._turn(runs[name], times[name], warm_up)
                rounds_us[name].append(seconds * 1e6)
                cpu_us[name].append(cpu_s * 1e6)
            if index == 0:
                began, round_s = now, sum(times[name] * one_s[name] for name in names)
            else:
                round_s = (now - began) / index
            if now + round_s > ends_at:
                break
        return {
            "op": cell.op,
            "ranks": self.size,
            "size_bytes": cell.size_bytes,
            "backends": {
                name: {
                    "executions": times[name],
                    "rounds_us": rounds_us[name],
                    "cpu_us": cpu_us[name],
                }
                for name in names
            },
        }

    def _estimate(self, run: Callable[[], None], turn_s: float) -> float:
        """About how many seconds one execution takes."""
        times = 1
        while True:
            one_s, _, _ = self._turn(run, times, warm_up=False)
            if one_s * times >= turn_s / 4 or times >= MOST_EXECUTIONS:
                return one_s
            times = min(max(2 * times, math.ceil(turn_s / 2 / one_s)), 50 * times)

    def _turn(
        self, run: Callable[[], None], times: int, warm_up: bool
    ) -> tuple[float, float, float]:
        """Seconds for one execution on the slowest rank, CPU seconds for one on the mean rank
        (all threads), and the time when it was over."""
        dist.barrier()
        if warm_up:
            run()  # the ranks leave the barrier one after the other; other caches are warm
        cpu_began, began = time.process_time(), time.perf_counter()
        for _ in range(times):
            run()
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        everyones = self._everyones([spent / times, cpu / times, time.monotonic()])
        slowest, _, now = everyones.max(dim=0).values.tolist()
        return slowest, everyones[:, 1].mean().item(), now

    def _everyones(self, numbers: list[float]) -> torch.Tensor:
        """A row of `numbers` from each rank."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        gathered = torch.empty(self.size * len(numbers), dtype=torch.float64)
        dist.all_gather_into_tensor(gathered, mine)
        return gathered.view(self.size, -1)


def _bound(run: Callable[[Any], None], group: Any) -> Callable[[], None]:
    return lambda: run(group)


def main(
    connection: Any, request: Request, rank: int, size: int, rendezvous: Path, ends_at: float
) -> None:
    """The body of the rank's process. Through `connection` go: ("row", row), from rank 0 only;
    ("failed", sentence), or ("done", "") at last."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(2, 1)  # stdout is the parent's, for rows; gloo greets there
    torch.set_num_threads(1)
    try:
        here = Rank(request, rank, size, rendezvous)
        for row in here.rows(ends_at):
            if rank == 0:
                connection.send(("row", row))
            if os.getppid() != parent:
                raise RuntimeError("the benchmark has ended without its ranks")
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
    else:
        connection.send(("done", ""))

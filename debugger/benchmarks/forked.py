"""Programs that measure with ranks: they start them, listen to them, and leave none behind.

torch is imported once, by the program, and the ranks are forked: on a small machine eight imports
of torch take longer than what is to be measured. A program is given one JSON object on its command
line, with `backends` in it. It prints JSON objects, one a line: what is measured, then rows as they
come, or {"error": sentence}.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import distcore

from .arguments import GPU_BACKENDS
from .comm_figures import timed
from .limits import END_S, SILENCE_S, TURN_S, WARM_UP_BELOW_S

Row = dict[str, Any]
Body = Callable[[int, int, Path, float], Iterator[Row]]
"""The body of a rank: `body(rank, size, directory, ends_at)`, where `directory` is the same empty
one for all and `ends_at` is on the monotonic clock. Only rank 0's rows count."""


class RankError(Exception):
    """A rank failed, died or went silent; the message is one sentence."""


def measure(body: Body, size: int, ends_at: float) -> Generator[Row, None, None]:
    """The rows of `size` ranks, in processes of their own. Raises RankError."""
    context = multiprocessing.get_context("fork")
    ranks: dict[Connection, int] = {}
    processes = []
    with tempfile.TemporaryDirectory(prefix="distdebug-bench-") as directory:
        try:
            for rank in range(size):
                mine, theirs = context.Pipe(duplex=False)
                arguments = (theirs, body, rank, size, Path(directory), ends_at)
                process = context.Process(target=_rank, args=arguments, daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                ranks[mine] = rank
            yield from _listen(ranks, processes, size)
            for process in processes:
                process.join(END_S)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _rank(
    connection: Any, body: Body, rank: int, size: int, directory: Path, ends_at: float
) -> None:
    """The rank's process. Through `connection` go: ("row", row), from rank 0 only;
    ("failed", sentence), or ("done", "") at last."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(2, 1)  # stdout is the parent's, for rows; gloo greets there
    torch.set_num_threads(1)
    try:
        for row in body(rank, size, directory, ends_at):
            if rank == 0:
                connection.send(("row", row))
            if os.getppid() != parent:
                raise RuntimeError("the benchmark has ended without its ranks")
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
    else:
        connection.send(("done", ""))


def _listen(
    ranks: dict[Connection, int], processes: list[Any], size: int
) -> Generator[Row, None, None]:
    """Yields what rank 0 measures, until all ranks are done."""
    while ranks:
        ready = wait(list(ranks), SILENCE_S)
        if not ready:
            raise RankError(f"{size} ranks gave no figure for {SILENCE_S:.0f} s")
        for one, rank in list(ranks.items()):
            if one not in ready:
                continue
            try:
                what, said = one.recv()
            except (EOFError, OSError):
                what, said = "failed", "its process has ended"
            if what == "failed":
                raise RankError(_dead(processes) or f"rank {rank} of {size}: {said}")
            if what == "done":
                del ranks[one]
            else:
                yield said


def _dead(processes: list[Any]) -> str | None:
    """The rank that has died, which is why others fail: it may be noticed after them."""
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    until = time.monotonic() + 0.5  # one of the others may say why
    while running and (ended := wait(list(running), max(0.0, until - time.monotonic()))):
        for sentinel in ended:
            assert isinstance(sentinel, int)
            rank = running.pop(sentinel)
            processes[rank].join()
            code = processes[rank].exitcode
            if code:
                return f"rank {rank} of {len(processes)} ended with exit code {code}"
    return None


def unavailable(backend: str) -> str | None:
    """Tells why `backend` cannot be measured here; None if it can."""
    if backend in GPU_BACKENDS:
        # Ranks are forked, and CUDA does not survive a fork: it is not to be asked in this process.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if backend != "nccl":
            return distcore.unavailable(backend)
        cuda: Any = torch.cuda
        there = torch.distributed.is_nccl_available() and cuda.is_available()
        return None if there else f"this torch ({torch.__version__}) has no NCCL and GPU to use"
    if distcore.is_backend_available(backend):
        return None
    inside = "gloo" if backend == "gloo" else f"backend {backend!r}"
    return f"this torch ({torch.__version__}) has no {inside} inside"


def program(
    rows: Callable[[dict[str, Any], float], Generator[Row, None, None]],
    unavailable: Callable[[str], str | None] = unavailable,
) -> None:
    """A program's `main`: print `rows(request, began)`, where `request` names only such backends as
    can be measured here."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the ranks are ended
    began = time.monotonic()
    request = json.loads(sys.argv[1])
    reasons = {name: unavailable(name.partition("/")[0]) for name in request["backends"]}
    backends = [name for name in request["backends"] if reasons[name] is None]
    skipped = [{"backend": name, "why": why} for name, why in reasons.items() if why is not None]
    if not backends:
        _print({"error": "; ".join(f"{one['backend']}: {one['why']}" for one in skipped)})
        return
    _print({"backends": backends, "skipped": skipped, "torch": torch.__version__})
    try:
        with closing(rows({**request, "backends": backends}, began)) as measured:
            for row in measured:  # whatever happens, no rank is left behind
                _print(row)
    except RankError as error:
        _print({"error": str(error)})


def _print(record: Row) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


Way = Callable[[int, bool], tuple[float, float, list[float]]]
"""`way(times, warm_up)` does it `times` times in a row, after once more that does not count where
`warm_up`; seconds and this process' CPU seconds (all threads) that one execution took, and the
seconds of each until the call returned."""
ENOUGH_ROUNDS = 5
"""Before there are so many, shorter turns are taken."""
MOST_EXECUTIONS = 5000


def here(run: Callable[[], None], finish: Callable[[], object] = lambda: None) -> Way:
    """The way that runs in this process; `finish` waits for what it has left to a GPU: on the CPU a
    call is over when it returns."""

    def way(times: int, warm_up: bool) -> tuple[float, float, list[float]]:
        if warm_up:
            run()  # the ranks leave the barrier one after the other; other caches are warm
            finish()
        return timed(run, times, finish)

    return way


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Returns, in us, the shortest time that so many of them do not exceed."""
    return sorted(seconds)[math.ceil(len(seconds) * percent / 100) - 1] * 1e6


class Turns:
    """This rank's part of measuring: ways to do one thing take turns, on all ranks together, until
    the time is up.

    All decisions (how many executions, how many rounds) are made from numbers that all ranks have
    exchanged, so that all of them decide alike. The exchange goes over the default group, of `size`
    ranks of gloo, whose threads sleep while a way is measured."""

    def __init__(self, size: int) -> None:
        self._size = size

    def now(self) -> float:
        """The monotonic clock, the same number on every rank."""
        return self._everyones([time.monotonic()])[:, 0].max().item()

    def measure(
        self, ways: Mapping[str, Way], ends_at: float, most_rounds: int
    ) -> dict[str, dict[str, Any]]:
        """Measures for each way `executions` (in a round), `rounds_us` and `cpu_us`: µs for one
        execution, one number per round, of the slowest rank and of the mean rank; and `p50_us` and
        `p99_us` of this rank's executions.

        At least one round is made; done by `ends_at` (monotonic) or after `most_rounds`. Who begins
        rotates with the rounds.
        """
        turn_s = (ends_at - self.now()) / len(ways) / (ENOUGH_ROUNDS + 1)
        turn_s = min(max(turn_s, TURN_S[0]), TURN_S[1])
        one_s = {}  # about how many seconds one execution takes
        for name, way in ways.items():
            count = 1
            one_s[name] = self._turn(way, count, warm_up=False)[0]
            while one_s[name] * count < turn_s / 4 and count < MOST_EXECUTIONS:
                count = min(max(2 * count, math.ceil(turn_s / 2 / one_s[name])), 50 * count)
                one_s[name] = self._turn(way, count, warm_up=False)[0]
        times = {name: min(max(1, round(turn_s / one_s[name])), MOST_EXECUTIONS) for name in one_s}
        rounds_us: dict[str, list[float]] = {name: [] for name in ways}
        cpu_us: dict[str, list[float]] = {name: [] for name in ways}
        each_s: dict[str, list[float]] = {name: [] for name in ways}
        names = list(ways)
        for index in range(most_rounds):
            for name in names[index % len(names) :] + names[: index % len(names)]:
                warm_up = one_s[name] < WARM_UP_BELOW_S
                seconds, cpu_s, now, each = self._turn(ways[name], times[name], warm_up)
                each_s[name] += each
                rounds_us[name].append(seconds * 1e6)
                cpu_us[name].append(cpu_s * 1e6)
            if index == 0:
                began, round_s = now, sum(times[name] * one_s[name] for name in names)
            else:
                round_s = (now - began) / index
            if now + round_s > ends_at:
                break
        return {
            name: {
                "executions": times[name],
                "rounds_us": rounds_us[name],
                "cpu_us": cpu_us[name],
                "p50_us": percentile(each_s[name], 50),
                "p99_us": percentile(each_s[name], 99),
            }
            for name in names
        }

    def _turn(self, way: Way, times: int, warm_up: bool) -> tuple[float, float, float, list[float]]:
        """Seconds for one execution on the slowest rank, CPU seconds for one on the mean rank, the
        time when it was over, and the seconds of each execution on this rank."""
        dist.barrier()
        seconds, cpu_s, each = way(times, warm_up)
        everyones = self._everyones([seconds, cpu_s, time.monotonic()])
        slowest, _, now = everyones.max(dim=0).values.tolist()
        return slowest, everyones[:, 1].mean().item(), now, each

    def _everyones(self, numbers: list[float]) -> torch.Tensor:
        """A row of `numbers` from each rank."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        gathered = torch.empty(self._size * len(numbers), dtype=torch.float64)
        dist.all_gather_into_tensor(gathered, mine)
        return gathered.view(self._size, -1)

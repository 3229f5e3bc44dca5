"""Programs that measure with ranks: they start them, listen to them, and leave none behind.

torch is imported once, by the program, and the ranks are forked: on a small machine eight imports
of torch take longer than what is to be measured. A program is given one JSON object on its command
line, with `backends` in it. It prints JSON objects, one a line: what is measured, then rows as they
come, or {"error": sentence}.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

import distcore

from . import open_mpi
from .arguments import GPU_BACKENDS
from .limits import DEATH_S, END_S, SILENCE_S

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
    until = time.monotonic() + DEATH_S
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
    if backend in (open_mpi.NAME, open_mpi.OURS):
        return open_mpi.unavailable()
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


def program(rows: Callable[[dict[str, Any], float], Generator[Row, None, None]]) -> None:
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

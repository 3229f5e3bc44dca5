"""How fast backends communicate: starts the ranks, one number of them after the other.

python -m debugger.benchmarks.communication REQUEST

REQUEST is `comm_ranks.Request` as a JSON object. Prints JSON objects, one a line: what is measured,
then the rows as they come, or {"error": sentence}. torch is imported once, here, and the ranks are
forked: on a small machine eight imports of torch take longer than what is to be measured.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

import distcore

from . import comm_ranks
from .comm_ranks import Request

SILENCE_S = 300.0
END_S = 10.0
DEATH_S = 0.5


class RankError(Exception):
    """A rank failed, died or went silent; the message is one sentence."""


def unavailable(backend: str) -> str | None:
    """Why `backend` cannot be measured here; None if it can."""
    if distcore.is_backend_available(backend):
        return None
    inside = {"mpi": "MPI", "gloo": "gloo"}.get(backend, f"backend {backend!r}")
    return f"this torch ({torch.__version__}) has no {inside} inside"


def measure(request: Request, size: int, ends_at: float) -> Generator[dict[str, Any], None, None]:
    """The rows of `size` ranks, in processes of their own. Raises RankError."""
    context = multiprocessing.get_context("fork")
    ranks: dict[Connection, int] = {}
    processes = []
    with tempfile.TemporaryDirectory(prefix="distdebug-bench-") as directory:
        rendezvous = Path(directory) / "rendezvous"
        try:
            for rank in range(size):
                mine, theirs = context.Pipe(duplex=False)
                arguments = (theirs, request, rank, size, rendezvous, ends_at)
                process = context.Process(target=comm_ranks.main, args=arguments, daemon=True)
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


def _listen(
    ranks: dict[Connection, int], processes: list[Any], size: int
) -> Generator[dict[str, Any], None, None]:
    """What rank 0 measures, until all ranks are done."""
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


def main() -> None:
    """Measure what the command line asks for, and print it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the ranks are ended
    began = time.monotonic()
    asked = Request(**json.loads(sys.argv[1]))
    reasons = {name: unavailable(name.partition("/")[0]) for name in asked.backends}
    backends = [name for name in asked.backends if reasons[name] is None]
    skipped = [{"backend": name, "why": why} for name, why in reasons.items() if why is not None]
    if not backends:
        _print({"error": "; ".join(f"{one['backend']}: {one['why']}" for one in skipped)})
        return
    _print({"backends": backends, "skipped": skipped, "torch": torch.__version__})
    request = Request(backends, asked.ops, asked.sizes, asked.ranks, asked.budget_s)
    ends_at = began + request.budget_s
    try:
        for index, size in enumerate(request.ranks):
            now = time.monotonic()
            share = (4 + size) / sum(4 + later for later in request.ranks[index:])
            rows = measure(request, size, now + max(0.0, ends_at - now) * share)
            with closing(rows):  # whatever happens, no rank is left behind
                for row in rows:
                    _print(row)
    except RankError as error:
        _print({"error": str(error)})


def _print(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

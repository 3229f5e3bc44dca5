"""Our backend mpi beside the others: each rank has a partner, which makes its calls below mpiexec.

The partners are processes of their own, started by Open MPI's `mpiexec`, so that nothing of MPI's
is in the ranks that measure the others; while those do, a partner sleeps in a read. Each partner is
told by its rank what to do, one JSON array a line each way, through a socket in the ranks'
directory. Settings are Open MPI's own for one host: its shared memory (btl sm, and single copies by
CMA). Only, ranks are not bound to cores and yield while they wait, which Open MPI does by itself
where there are more ranks than cores. On a quiet machine of as many cores that costs 0.4 µs a call
and nothing from 64 KiB; where somebody else is using a core, bound or spinning ranks are up to a
hundred times slower, which would be no fair comparison.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from ..hook.loading import command
from . import comm_ranks, forked
from .arguments import MPI_BACKEND
from .forked import Way
from .limits import END_S, SILENCE_S

INSTALL = "pip install 'distdebug[mpi]'"


def unavailable() -> str | None:
    """Tells why MPI cannot be measured here; None if it can."""
    missing = [name for name in ("mpi4py", "numpy") if importlib.util.find_spec(name) is None]
    launcher = _launcher()
    if missing or launcher is None:
        absent = " and ".join([*missing, *(["mpiexec"] if launcher is None else [])])
        return f"there is no {absent} here: {INSTALL}"
    said = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in said.stdout:
        return f"{launcher} is not Open MPI's: {INSTALL}"
    return None


def _launcher() -> str | None:
    """The `mpiexec` beside this Python, as the wheel installs it, or the first of PATH."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("mpiexec", path=beside + os.pathsep + os.environ.get("PATH", os.defpath))


class Partner:
    """The process that stands for this rank below mpiexec. A context manager.

    Every method is called by all ranks. Raises RuntimeError, in one sentence, when mpiexec does not
    start the partners, or one has ended.
    """

    def __init__(self, rank: int, size: int, directory: Path) -> None:
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._said = directory / "mpiexec.txt"
        with socket.socket(socket.AF_UNIX) as listener:
            prefix = str(directory / "partner-")
            listener.bind(f"{prefix}{rank}")
            listener.listen(1)
            listener.settimeout(0.1)
            dist.barrier()  # all of them listen
            if rank == 0:
                self._mpiexec = self._start(size, prefix)
            self._socket = self._accept(listener)
        self._socket.settimeout(SILENCE_S)
        self._stream = self._socket.makefile("rw")
        problem = self._read()
        if problem:
            raise RuntimeError(problem)

    def _start(self, size: int, prefix: str) -> subprocess.Popen[bytes]:
        launcher = _launcher()
        assert launcher is not None
        cores = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
        placing = ["--bind-to", "none"]
        if size > cores:
            placing += ["--map-by", ":OVERSUBSCRIBE"]
        program = command("benchmarks.mpi_rank", str(size), prefix)
        variables = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
        if os.geteuid() == 0:
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        with self._said.open("wb") as said:
            return subprocess.Popen(
                [launcher, "-n", str(size), *placing, *program],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=variables,
            )

    def _accept(self, listener: socket.socket) -> socket.socket:
        until = time.monotonic() + 60.0  # seconds; mpiexec starts a Python for each rank
        while time.monotonic() < until:
            try:
                return listener.accept()[0]
            except TimeoutError:
                if self._mpiexec is not None and self._mpiexec.poll() is not None:
                    break
        raise RuntimeError(f"mpiexec has not started its ranks: {self._last_words()}")

    def _last_words(self) -> str:
        text = self._said.read_text(errors="backslashreplace") if self._said.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
        return " ".join(lines)[:300] or "it said nothing"

    def prepare(self, op: str, size_bytes: int) -> tuple[bool, Way]:
        """Make the buffers for `op`, instead of those before: whether it gives the right data, and
        the way to measure it."""
        return bool(self._ask(["prepare", op, size_bytes])), self.turn

    def turn(self, times: int, warm_up: bool) -> tuple[float, float, list[float]]:
        """A `forked.Way`; the time is the partner's own."""
        seconds, cpu_s, each = self._ask(["turn", times, warm_up])
        return seconds, cpu_s, each

    def _ask(self, order: list[Any]) -> Any:
        self._tell(order)
        return self._read()

    def _tell(self, order: list[Any]) -> None:
        try:
            self._stream.write(json.dumps(order) + "\n")
            self._stream.flush()
        except OSError:
            raise RuntimeError(self._ended()) from None

    def _read(self) -> Any:
        try:
            line = self._stream.readline()
        except OSError:
            line = ""
        if not line:
            raise RuntimeError(self._ended())
        return json.loads(line)

    def _ended(self) -> str:
        return f"one of mpiexec's ranks has ended or is silent; mpiexec: {self._last_words()}"

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._tell(["end"])
        with contextlib.suppress(OSError):  # what it could not be told any more
            self._stream.close()
        self._socket.close()  # without "end" before it, the partner gives up, and so do all
        if self._mpiexec is not None:
            try:
                self._mpiexec.wait(END_S)
            except subprocess.TimeoutExpired:
                self._mpiexec.kill()
                self._mpiexec.wait()


@contextlib.contextmanager
def _elsewhere(rank: int, size: int, directory: Path) -> Iterator[comm_ranks.Prepare]:
    with Partner(rank, size, directory) as partner:
        yield partner.prepare


def _rows(request: dict[str, Any], began: float) -> Generator[forked.Row, None, None]:
    wanted = MPI_BACKEND in request["backends"]
    return comm_ranks.all_rows(request, began, _elsewhere if wanted else None)


def _unavailable(backend: str) -> str | None:
    return unavailable() if backend == MPI_BACKEND else forked.unavailable(backend)


def main() -> None:
    """The program."""
    forked.program(_rows, _unavailable)

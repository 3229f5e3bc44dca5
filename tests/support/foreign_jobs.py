"""Jobs that are started as users start them, with nothing of distdebug in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from . import mpi
from .ports import unclaimed_port

_OF_MPI = """
import os, runpy, sys
told = os.environ
for name, theirs in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
    told[name] = told["OMPI_COMM_WORLD_" + theirs]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_SPAWNING = """
import os, runpy, sys
import torch.multiprocessing as mp

def work(rank, size, arguments):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    sys.argv[:] = arguments
    runpy.run_path(arguments[0], run_name="__main__")

if __name__ == "__main__":
    size = int(sys.argv[1])
    mp.start_processes(work, (size, sys.argv[2:]), nprocs=size, start_method="fork")
"""


def torchrun(ranks: int, words: Sequence[str]) -> list[str]:
    """The command line of plain torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks), *words]


def mpiexec(ranks: int, words: Sequence[str]) -> list[str]:
    """That of Open MPI's mpiexec: the program itself sets RANK, where nobody outside sees it."""
    return [*mpi.command("openmpi", ranks), sys.executable, "-c", _OF_MPI, *words]


def mp_spawn(ranks: int, words: Sequence[str]) -> list[str]:
    """That of a program that starts its own ranks with torch.multiprocessing."""
    return [sys.executable, "-c", _SPAWNING, str(ranks), *words]


@contextmanager
def job(
    command: Sequence[str], directory: Path, extra: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The job, in a session of its own; what it prints goes to `output`. All of it is gone
    afterwards."""
    with open(directory / "output", "wb") as output:
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unclaimed_port())}
        running = subprocess.Popen(
            command,
            env=mpi.environment(str(directory), {**given, "OMP_NUM_THREADS": "1", **(extra or {})}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        end(running)


def end(running: subprocess.Popen[bytes]) -> None:
    """Kill it and all below it, and who was below it and has lost its parent."""
    with suppress(psutil.NoSuchProcess):
        for one in [*psutil.Process(running.pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    running.kill()
    running.wait()
    for one in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(one.pid) == running.pid:
                os.kill(one.pid, signal.SIGKILL)

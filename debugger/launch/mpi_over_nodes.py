"""`distdebug run --launcher mpi --hostfile`: ranks on several hosts, each below a supervisor of its
own, as with `mpiexec distdebug exec -- ...`; together they give one verdict."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..hook.loading import command
from ..record.safe_files import read_regular
from .mpi_launcher import SHIM, find_launcher, is_open_mpi, program_of, why_not_mpi
from .torchrun_flags import RunRequest

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
        raise UsageError("--launcher mpi needs the number of ranks: -n 4")
    why_not_mpi(request)
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

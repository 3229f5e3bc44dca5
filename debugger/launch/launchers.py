"""The job that a launcher's command line starts: how many ranks, on nodes of which size, which
program; and whether it is one node's part of a greater job.

For `distdebug plan exec -- CMD`, which starts no launcher: it plans what the launcher would start.
Each launcher's flags are read exactly or not at all: a flag that may change the ranks and is not
known here is told in a sentence, since a plan of another job than the one that runs is worth less
than none.

Of `distdebug run --nnodes 2 ...`, and of `distdebug exec -- torchrun --nnodes 2 ...`, typed on each
node, the launcher runs as it is, but the supervisors have to know that there are others to meet;
what cannot be read is no such launcher.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import UsageError
from . import pythons
from .torchrun_flags import node_range, rank_count, split_command_line

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_TORCHRUN_MODULES = ("torch.distributed.run",)
_OLDER_TORCHRUN = "torch.distributed.launch"
_ACCELERATE_MODULE = "accelerate.commands.launch"
_INSTEAD = "write `distdebug plan -n N script` instead"

_MPI_RANKS = {"-n", "-np", "--np", "-c", "--n"}
_MPI_PER_NODE = {"-ppn", "--ppn", "-perhost", "-npernode", "--npernode", "-N"}
_MPI_WITH_VALUES = {
    **dict.fromkeys(("-host", "--host", "-hosts", "-H", "-f", "-hostfile", "--hostfile"), 1),
    **dict.fromkeys(("-machinefile", "--machinefile", "-bind-to", "--bind-to"), 1),
    **dict.fromkeys(("-map-by", "--map-by", "-rank-by", "--rank-by", "-iface", "-launcher"), 1),
    **dict.fromkeys(("--runtime-options", "--output", "-output-filename", "--output-filename"), 1),
    **dict.fromkeys(("-mca", "--mca", "-gmca", "--gmca", "--prtemca", "--pmixmca"), 2),
}
_MPI_BARE = {
    *("--oversubscribe", "-oversubscribe", "--allow-run-as-root", "-allow-run-as-root"),
    *("-disable-auto-cleanup", "--tag-output", "-tag-output", "-l", "-q", "--quiet", "-v"),
    *("--bind-to-core", "--report-bindings", "-report-bindings", "-genvall", "-envall"),
}
_ACCELERATE_WITH_VALUES = {
    *(
        "--machine_rank",
        "--main_process_ip",
        "--main_process_port",
        "--num_cpu_threads_per_process",
    ),
    *("--rdzv_backend", "--rdzv_conf", "--max_restarts", "--monitor_interval", "--gpu_ids"),
}
_ACCELERATE_BARE = {"--multi_gpu", "--cpu", "--same_network", "-q", "--quiet", "--debug"}


@dataclass(frozen=True, slots=True)
class LauncherJob:
    """The job that would be started. `ranks` is None where the command line does not say it, and
    why is `unsaid`; `starts_itself`: the program is one process, which starts its ranks. `program`
    is what follows `distdebug plan -n N`."""

    program: tuple[str, ...]
    ranks: int | None = None
    local_size: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    starts_itself: bool = False
    unsaid: str = ""


def read(command: Sequence[str]) -> LauncherJob:
    """Reads what the command would start.

    Raises:
        UsageError: no launcher and no Python, a flag whose meaning is not known, no program.
    """
    if not command:
        raise UsageError("no command was given; write one after `exec --`")
    name = os.path.basename(command[0])
    rest = list(command[1:])
    if name == "torchrun":
        return _torchrun(rest)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _accelerate(rest[1:])
    if name in ("mpiexec", "mpirun", "mpiexec.hydra", "orterun", "prterun"):
        return _mpi(name, rest)
    if _PYTHON.fullmatch(name):
        return _python(name, rest)
    if name.endswith(".py"):
        return LauncherJob(tuple(command), starts_itself=True)
    raise UsageError(
        f"plan exec reads the command lines of torchrun, accelerate launch, mpiexec and python; "
        f"what {name!r} starts is not known to it: {_INSTEAD}"
    )


def _python(name: str, words: list[str]) -> LauncherJob:
    environment: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] not in ("-m", "-"):
        flag = words.pop(0)
        if re.fullmatch(r"-O+", flag):
            environment["PYTHONOPTIMIZE"] = str(len(flag) - 1)
        elif flag[:2] in ("-W", "-X"):
            value = flag[2:] or _value(name, flag, words)
            if flag[:2] == "-W":
                environment["PYTHONWARNINGS"] = value
        elif not re.fullmatch(r"-[uBsq]+", flag):
            raise UsageError(f"plan exec cannot plan {name} {flag}: {_INSTEAD}")
    if not words or words[0] == "-":
        raise UsageError(f"plan exec -- {name}: there is no script behind it")
    if words[0] == "-m" and len(words) > 1:
        if words[1] in _TORCHRUN_MODULES:
            return _torchrun(words[2:], environment)
        if words[1] == _OLDER_TORCHRUN:
            raise UsageError(
                "torch.distributed.launch gives each rank an argument of its own, which is not "
                "planned: write `plan exec -- torchrun ...`"
            )
        if words[1] == _ACCELERATE_MODULE:
            return _accelerate(words[2:], environment)
    return LauncherJob(tuple(words), environment=environment, starts_itself=True)


def _torchrun(words: Sequence[str], environment: Mapping[str, str] | None = None) -> LauncherJob:
    request = split_command_line(words, argparse.ArgumentParser(prog="torchrun", add_help=False))
    torchrun = request.torchrun
    program = (*["-m"] * bool(torchrun.module), request.script, *request.script_arguments)
    if torchrun.no_python:
        inner = read([request.script, *request.script_arguments])
        if not inner.starts_itself:
            raise UsageError(f"torchrun starts {request.script}, which starts ranks: {_INSTEAD}")
        program = inner.program
        environment = {**(environment or {}), **inner.environment}
    fewest, most = node_range(torchrun.nnodes)
    local = rank_count(torchrun.nproc_per_node, "--nproc-per-node")
    unsaid = ""
    if local is None:
        unsaid = f"--nproc-per-node {torchrun.nproc_per_node} depends on the machine"
    elif fewest != most:
        unsaid = f"--nnodes {torchrun.nnodes} leaves it open"
    ranks = None if unsaid or local is None else local * most
    return LauncherJob(program, ranks, local, environment or {}, unsaid=unsaid)


def _accelerate(words: list[str], environment: Mapping[str, str] | None = None) -> LauncherJob:
    settings = dict(environment or {})
    ranks: int | None = None
    machines, is_module = 1, False
    while words and words[0].startswith("-"):
        word, _, attached = words.pop(0).partition("=")
        flag = "--" + word[2:].replace("-", "_") if word.startswith("--") else word
        if flag in ("-m", "--module"):
            is_module = True
        elif flag in _ACCELERATE_BARE:
            continue
        elif flag == "--num_processes":
            ranks = _number("accelerate", word, attached or _value("accelerate", word, words))
        elif flag == "--num_machines":
            machines = _number("accelerate", word, attached or _value("accelerate", word, words))
        elif flag == "--mixed_precision":
            settings["ACCELERATE_MIXED_PRECISION"] = attached or _value("accelerate", word, words)
        elif flag in _ACCELERATE_WITH_VALUES:
            attached = attached or _value("accelerate", word, words)
        else:
            raise UsageError(
                f"plan exec does not know what accelerate's {word} sets up for the script: "
                f"{_INSTEAD}, with the variables that accelerate would set"
            )
    program = _program("accelerate launch", [*["-m"] * is_module, *words], settings)
    if ranks is not None and ranks % machines:
        raise UsageError(f"--num_processes {ranks} are not the same number on {machines} machines")
    return LauncherJob(
        program,
        ranks,
        None if ranks is None else ranks // machines,
        settings,
        unsaid="" if ranks else "accelerate takes it from its configuration or from the machine",
    )


_MPI_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""The variables that it gives to each rank, which gets its own."""


def _mpi(name: str, words: list[str]) -> LauncherJob:
    ranks: int | None = None
    local: int | None = None
    settings: dict[str, str] = {}
    while words and words[0].startswith("-"):
        flag, equals, attached = words.pop(0).partition("=")
        if flag in _MPI_RANKS or flag in _MPI_PER_NODE:
            number = _number(name, flag, attached if equals else _value(name, flag, words))
            ranks, local = (number, local) if flag in _MPI_RANKS else (ranks, number)
        elif flag in ("-x", "-env", "-genv"):
            given = attached if equals else _value(name, flag, words)
            variable, assigned, value = given.partition("=")
            if not assigned:
                value = os.environ.get(given, "") if flag == "-x" else _value(name, flag, words)
            settings[variable] = value
        elif flag in _MPI_WITH_VALUES:
            for _ in range(_MPI_WITH_VALUES[flag] - bool(equals)):
                _value(name, flag, words)
        elif flag not in _MPI_BARE:
            raise UsageError(f"plan exec does not know {name}'s flag {flag}: {_INSTEAD}")
    if ":" in words:
        raise UsageError(f"{name} starts several programs here, which a plan cannot: {_INSTEAD}")
    settings = {**dict.fromkeys(_MPI_VARIABLES, "0"), **settings}
    unsaid = "" if ranks else f"{name} takes it from the machine: there is no -n"
    return LauncherJob(_program(name, words, settings), ranks, local, settings, unsaid=unsaid)


def _program(launcher: str, words: Sequence[str], settings: dict[str, str]) -> tuple[str, ...]:
    """Returns what follows `distdebug plan -n N` of the program that each rank is; what Python's
    flags mean is added to the settings."""
    if not words or words == ["-m"]:
        raise UsageError(f"plan exec -- {launcher}: there is no script behind it")
    if words[0] == "-m" or words[0].endswith(".py"):
        return tuple(words)
    inner = read(words)
    if not inner.starts_itself:
        raise UsageError(f"{launcher} starts {words[0]}, which starts ranks itself: {_INSTEAD}")
    settings.update(inner.environment)
    return inner.program


def _value(launcher: str, flag: str, words: list[str]) -> str:
    if not words:
        raise UsageError(f"{launcher} {flag} needs a value")
    return words.pop(0)


def _number(launcher: str, flag: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{launcher} {flag} {text}: a number of ranks is needed")
    return int(text)


# -- how many nodes take part ---------------------------------------------------------------------

_USES_ENVIRONMENT = ("--use-env", "--use_env")
"""A flag of torch.distributed.launch, which torchrun has no more."""


@dataclass(frozen=True, slots=True)
class NodesOfLauncher:
    """`fewest` to `most` nodes take part; `node`: the flag that says which of them this is, with
    its value, where only one node may be that; `ranks`: so many are started here (0: not known)."""

    fewest: int
    most: int
    node: str = ""
    ranks: int = 0


def nodes_of_launcher(command: Sequence[str]) -> NodesOfLauncher | None:
    """None where the command is no such launcher, or has all its ranks on this node."""
    try:
        found = _nodes_of(list(command))
    except (UsageError, SystemExit):
        return None  # the launcher itself will say what is wrong
    return None if found is None or found.most == 1 else found


def nodes_of_torchrun(torchrun: argparse.Namespace) -> NodesOfLauncher | None:
    """By its flags; None where all ranks are on this node. Raises UsageError."""
    if torchrun.standalone:
        return None
    # Other rendezvous give the nodes their numbers themselves.
    node = f"--node-rank {torchrun.node_rank}" if torchrun.rdzv_backend == "static" else ""
    ranks = rank_count(torchrun.nproc_per_node, "--nproc-per-node") or 0
    found = NodesOfLauncher(*node_range(torchrun.nnodes), node, ranks)
    return None if found.most == 1 else found


def _nodes_of(words: list[str]) -> NodesOfLauncher | None:
    name, rest = os.path.basename(words[0]), words[1:]
    python = words[0]
    if not _PYTHON.fullmatch(name):
        python = os.path.join(os.path.dirname(shutil.which(python) or ""), "python")
    if _PYTHON.fullmatch(name):
        while rest and rest[0] != "-m" and rest[0].startswith("-"):
            rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
        if rest[:1] != ["-m"] or len(rest) < 2:
            name, rest = (os.path.basename(rest[0]), rest[1:]) if rest else ("", [])
        elif rest[1] in (*_TORCHRUN_MODULES, _OLDER_TORCHRUN):
            name, rest = "torchrun", rest[2:]
        elif rest[1] == _ACCELERATE_MODULE:
            name, rest = "accelerate", ["launch", *rest[2:]]
    if name == "torchrun":
        own = argparse.ArgumentParser(prog="torchrun", add_help=False)
        words = [word for word in rest if word not in _USES_ENVIRONMENT]
        if not pythons.this().torch:
            own.add_argument("--python")
            words = ["--python", python, *words]
        return nodes_of_torchrun(split_command_line(words, own).torchrun)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _nodes_of_accelerate(rest[1:])
    return None


def _nodes_of_accelerate(words: Sequence[str]) -> NodesOfLauncher | None:
    """Reads the flags before the script; what stands in accelerate's configuration is not known."""
    values: dict[str, str] = {}
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word.endswith(".py"):
            break
        following = words[place + 1] if place + 1 < len(words) else ""
        values[flag.replace("-", "_")] = value if equals else following
    machines = values.get("__num_machines", "")
    if not (machines.isascii() and machines.isdigit() and 0 < len(machines) < 8):
        return None
    # Other rendezvous give the machines their numbers themselves, and without the flag its
    # configuration does, which is not read here.
    rank, backend = values.get("__machine_rank", ""), values.get("__rdzv_backend", "static")
    node = f"--machine_rank {rank}" if rank and backend == "static" else ""
    return NodesOfLauncher(int(machines), int(machines), node)

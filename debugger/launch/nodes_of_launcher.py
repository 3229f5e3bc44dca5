"""Whether a launcher starts one node's part of a greater job, by its flags.

Of `distdebug run --nnodes 2 ...`, and of `distdebug exec -- torchrun --nnodes 2 ...`, typed on each
node: there the launcher runs as it is, but the supervisors have to know that there are others to
meet, and what cannot be read is no such launcher.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from . import pythons
from .torchrun_flags import split_command_line
from .world_size import node_range, rank_count

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE_MODULE = "accelerate.commands.launch"
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
        found = _read(list(command))
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


def _read(words: list[str]) -> NodesOfLauncher | None:
    name, rest = os.path.basename(words[0]), words[1:]
    python = words[0]
    if not _PYTHON.fullmatch(name):
        python = os.path.join(os.path.dirname(shutil.which(python) or ""), "python")
    if _PYTHON.fullmatch(name):
        while rest and rest[0] != "-m" and rest[0].startswith("-"):
            rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
        if rest[:1] != ["-m"] or len(rest) < 2:
            name, rest = (os.path.basename(rest[0]), rest[1:]) if rest else ("", [])
        elif rest[1] in _TORCHRUN_MODULES:
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
        return _accelerate(rest[1:])
    return None


def _accelerate(words: Sequence[str]) -> NodesOfLauncher | None:
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

"""`distdebug plan exec -- CMD`: a plan of what a launcher would start, or a script by itself."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..launch.launchers import LauncherJob
    from ..launch.torchrun_flags import RunRequest
    from ..plan.program import Program

WORD = "exec"
_RANKS = re.compile(r"-n.*|--nproc[-_]per[-_]node(=.*)?")
_NODES = re.compile(r"--(nodes|local[-_]size)(=.*)?")
_SCALE = re.compile(r"--scale(=.*)?")


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a command line of `plan`. `job` is what the command behind `exec` would start;
    None without it."""

    request: RunRequest
    job: LauncherJob | None = None
    command: tuple[str, ...] = ()

    @property
    def shown(self) -> list[str]:
        """The words behind `plan`, for reports."""
        if self.job is None:
            return self.request.command_line
        return [*self.request.own_arguments, WORD, "--", *self.command]


def read(argv: Sequence[str], own: argparse.ArgumentParser) -> Asked:
    """Raises UsageError as `split_command_line` does, and for a command that cannot be planned."""
    # Imported here, so that `--help` of other commands answers at once.
    from ..launch import launchers
    from ..launch.torchrun_flags import split_at_script, split_command_line

    if argv[:1] == [WORD] and argv[1:2] in (["-h"], ["--help"]):
        argv = argv[1:]
    if argv[:1] in (["-h"], ["--help"]) or WORD not in argv:
        return Asked(split_command_line(argv, own))
    flags, rest = split_at_script(argv, own)
    if rest == [WORD] and not os.path.exists(WORD):
        raise UsageError(
            "no command was given; write one after `--`, "
            "for example: distdebug plan exec -- torchrun --nproc-per-node 8 train.py"
        )
    if rest[:1] != [WORD] or "--" not in rest:
        return Asked(split_command_line(argv, own))
    # `plan exec -n 4 -- CMD` means the same as `plan -n 4 exec -- CMD`.
    at = rest.index("--")
    more, behind = split_at_script(rest[1:at], own)
    if behind:
        raise UsageError(f"plan exec: write `--` before the command, not {behind[0]!r}")
    flags = [flag for flag in flags if flag != "--"] + more
    job = launchers.read(rest[at + 1 :])
    scaled = any(map(_SCALE.fullmatch, flags))
    if job.starts_itself:
        if any(map(_RANKS.fullmatch, flags)) or scaled:
            raise UsageError(
                "plan exec: the script says how many ranks it starts, so leave -n and --scale out"
            )
    elif not any(map(_RANKS.fullmatch, flags)) and not scaled:
        if job.ranks is None:
            raise UsageError(f"how many ranks? {job.unsaid}: write `plan exec -n 64 -- ...`")
        flags += ["-n", str(job.ranks)]
    if job.local_size is not None and not any(map(_NODES.fullmatch, flags)):
        flags += ["--local-size", str(job.local_size)]
    return Asked(split_command_line([*flags, *job.program], own), job, tuple(rest[at + 1 :]))


def check_of_itself(own: argparse.Namespace) -> None:
    """Raises UsageError for a flag that needs the number of ranks before it is known."""
    for flag, given in (("--ranks", own.ranks), ("--nodes", own.nodes)):
        if given:
            raise UsageError(
                f"{flag} needs the number of ranks, which the script says: leave it out"
            )


def check_programs(programs: Mapping[int, Program]) -> None:
    """Raises UsageError where the processes that the script started were no ranks."""
    if any(program.groups for program in programs.values()):
        return
    if all(_ended_well(program) for program in programs.values()):
        raise UsageError(
            f"none of the {len(programs)} processes that the script starts joined a group"
        )


def _ended_well(program: Program) -> bool:
    last = program.events[-1] if program.events else None
    return getattr(last, "exit_code", 0) == 0 and getattr(last, "signal", None) is None

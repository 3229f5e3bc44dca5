"""Runs the ranks of a plan, in a process of their own, into a run directory.

That process imports torch and whatever the ranks need; this one needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import DistdebugError, UsageError
from ..hook.loading import command
from ..record.exits import ExitStatus
from ..record.requests.plan_request import Outcome, Request
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import whole_number
from ..record.writing.program_writer import FOLDER

_FORKER = "rank.plan.forker"
_LAUNCHER = "rank.plan.launched"

RunCommand = Callable[[Sequence[str], str, Mapping[str, str]], ExitStatus]
"""Runs a command, with what it reads from its standard input and its environment, to its end."""


class PlanningFailed(DistdebugError):
    """The process that runs the ranks has failed."""


def plan_ranks(
    directory: RunDirectory, request: Request, starts_itself: bool, run: RunCommand
) -> Outcome:
    """Run the ranks; their programs are in the run directory then. `starts_itself`: the target is
    the program that starts the ranks, and says how many there are. Raises PlanningFailed, and
    UsageError where the program cannot be planned."""
    (directory.path / FOLDER).mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, **request.environment}
    environment.setdefault("OMP_NUM_THREADS", "1")
    whole = replace(
        request,
        run_dir=str(directory.path),
        ranks=request.ranks or tuple(range(request.world_size)),
        jobs=request.jobs or len(os.sched_getaffinity(0)),
        environment=environment,
    )
    ended = run(
        command(_LAUNCHER if starts_itself else _FORKER, shared=True), whole.to_json(), environment
    )
    refusal = directory.path / Outcome.REFUSAL
    if refusal.exists():
        raise UsageError(refusal.read_text(errors="replace"))
    outcome = Outcome.read(directory.path)
    if ended.shell_code or outcome is None:
        raise PlanningFailed(
            f"the process that runs the planned ranks ended with {ended}; "
            f"what it left is in {directory.path}"
        )
    return outcome


def chosen_ranks(text: str, world_size: int) -> tuple[int, ...]:
    """ "0-7,1016-1023" as ranks. Raises ValueError, with a sentence, for anything else."""
    found: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        first, dash, last = part.partition("-")
        low, high = whole_number(first), whole_number(last if dash else first)
        if low is None or high is None:
            raise ValueError(f"{part!r} is no rank and no range of ranks, such as 0-7")
        if low > high or high >= world_size:
            raise ValueError(f"{part!r} is not within 0-{world_size - 1}")
        found.update(range(low, high + 1))
    if not found:
        raise ValueError("it names no rank")
    return tuple(sorted(found))


def shown(command: Sequence[str]) -> list[str]:
    """The command line, for reports."""
    return ["distdebug", "plan", *command]

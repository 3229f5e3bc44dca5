"""Runs the ranks of a plan, in a process of their own, into a run directory.

That process imports torch and whatever the ranks need; this one needs neither.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DistdebugError, UsageError
from ..record.requests.plan_request import Outcome, Request
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text.whole_numbers import whole_number
from ..record.writing.program_writer import FOLDER

_FORKER = "rank.plan.forker"
_START = "import sys; sys.path.pop(0); from {module} import main; main()"
"""Without the folder that it is started in: modules of the user's there may have any name."""
_LAUNCHER = "rank.plan.launched"


class PlanningFailed(DistdebugError):
    """The process that runs the ranks has failed."""


def plan_ranks(directory: RunDirectory, request: Request, starts_itself: bool) -> Outcome:
    """Run the ranks; their programs are in the run directory then. `starts_itself`: the target is
    the program that starts the ranks, and says how many there are. Raises PlanningFailed, and
    UsageError where the program cannot be planned."""
    (directory.path / FOLDER).mkdir(mode=0o700, exist_ok=True)
    package = __package__.rpartition(".")[0]
    environment = {**os.environ, **request.environment}
    environment.setdefault("OMP_NUM_THREADS", "1")
    whole = replace(
        request,
        run_dir=str(directory.path),
        ranks=request.ranks or tuple(range(request.world_size)),
        jobs=request.jobs or len(os.sched_getaffinity(0)),
        environment=environment,
    )
    module = f"{package}.{_LAUNCHER if starts_itself else _FORKER}"
    done = subprocess.run(
        [sys.executable, "-c", _START.format(module=module)],
        input=whole.to_json(),
        text=True,
        env={**environment, "PYTHONPATH": _path_to_us(package, environment)},
        check=False,
    )
    refusal = directory.path / Outcome.REFUSAL
    if refusal.exists():
        raise UsageError(refusal.read_text(errors="replace"))
    outcome = Outcome.read(directory.path)
    if done.returncode or outcome is None:
        raise PlanningFailed(
            f"the process that runs the planned ranks ended with status {done.returncode}; "
            f"what it left is in {directory.path}"
        )
    return outcome


def _path_to_us(package: str, environment: Mapping[str, str]) -> str:
    """Where that process finds this package, whatever folder it is started in."""
    top = sys.modules[package.partition(".")[0]]
    folders = [str(Path(next(iter(top.__path__))).resolve().parent)]
    return os.pathsep.join([*folders, *filter(None, [environment.get("PYTHONPATH", "")])])


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

"""Runs the ranks of a plan, in a process of their own, into a run directory.

That process imports torch and whatever the ranks need; this one needs neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DistdebugError, UsageError
from ..record.json_objects import object_of
from ..record.program_writer import FOLDER
from ..record.run_directory import RunDirectory

_FORKER = "rank.plan.forker"
_START = "import sys; sys.path.pop(0); from {module} import main; main()"
"""Without the folder that it is started in: modules of the user's there may have any name."""
_LAUNCHER = "rank.plan.launched"
_OUTCOME = "planned.json"
_NOT_TOLD = ("environment", "starts_itself")
_REFUSAL = "not_planned.txt"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is asked for; the flags of `distdebug plan`.

    `ranks` are those that are planned; empty: all. `steps`: after so many steps of an optimiser a
    rank ends in good order (0: when it ends by itself). `real_bytes`: how much of a tensor of
    integers is exchanged for real. `undecided`: which way a rank goes where a decision depends on a
    value that a plan does not have. `time_s`: how long a rank may run. `memory_bytes`: what all
    ranks that wait may have together (0: half of what is free). `accelerator`: whether calls for
    `cuda` are answered. `starts_itself`: the target is the program that starts the ranks, and says
    how many there are.
    """

    target: str
    arguments: tuple[str, ...]
    world_size: int
    is_module: bool = False
    local_size: int = 8
    ranks: tuple[int, ...] = ()
    steps: int = 0
    jobs: int = 0
    real_bytes: int = 65536
    undecided: str = "likely"
    time_s: float = 120.0
    memory_bytes: int = 0
    accelerator: str = "auto"
    starts_itself: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """How the running of the ranks went. `statuses` are raw, by rank; `cut`: why nothing more is
    known of a rank; `runs`: processes that were started."""

    statuses: Mapping[int, int]
    cut: Mapping[int, str]
    runs: int
    seconds: float
    most_private_bytes: int
    most_waiting: int

    @property
    def world_size(self) -> int:
        """How many ranks there were, where all were planned."""
        return len(self.statuses.keys() | self.cut.keys())


class PlanningFailed(DistdebugError):
    """The process that runs the ranks has failed."""


def plan_ranks(directory: RunDirectory, options: PlanOptions) -> Planned:
    """Run the ranks; their programs are in the run directory then. Raises PlanningFailed, and
    UsageError where the program cannot be planned."""
    (directory.path / FOLDER).mkdir(mode=0o700, exist_ok=True)
    package = __package__.rpartition(".")[0]
    environment = {**os.environ, **options.environment}
    environment.setdefault("OMP_NUM_THREADS", "1")
    request: dict[str, Any] = {
        **{name: value for name, value in asdict(options).items() if name not in _NOT_TOLD},
        "run_dir": str(directory.path),
        "ranks": options.ranks or tuple(range(options.world_size)),
        "jobs": options.jobs or len(os.sched_getaffinity(0)),
        "environment": environment,
    }
    module = f"{package}.{_LAUNCHER if options.starts_itself else _FORKER}"
    done = subprocess.run(
        [sys.executable, "-c", _START.format(module=module)],
        input=json.dumps(request),
        text=True,
        env={**environment, "PYTHONPATH": _path_to_us(package, environment)},
        check=False,
    )
    refusal = directory.path / _REFUSAL
    if refusal.exists():
        raise UsageError(refusal.read_text(errors="replace"))
    outcome = _outcome(directory.path)
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


def _outcome(directory: Path) -> Planned | None:
    try:
        found = object_of((directory / _OUTCOME).read_bytes())
        return Planned(
            {int(rank): int(status) for rank, status in found["statuses"].items()},
            {int(rank): str(why) for rank, why in found["cut"].items()},
            int(found["runs"]),
            float(found["seconds"]),
            int(found["most_private_bytes"]),
            int(found["most_waiting"]),
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def chosen_ranks(text: str, world_size: int) -> tuple[int, ...]:
    """ "0-7,1016-1023" as ranks. Raises ValueError, with a sentence, for anything else."""
    found: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(f"{part!r} is no rank and no range of ranks, such as 0-7")
        low, high = int(first), int(last or first)
        if low > high or high >= world_size:
            raise ValueError(f"{part!r} is not within 0-{world_size - 1}")
        found.update(range(low, high + 1))
    if not found:
        raise ValueError("it names no rank")
    return tuple(sorted(found))


def shown(command: Sequence[str]) -> list[str]:
    """The command line, for reports."""
    return ["distdebug", "plan", *command]

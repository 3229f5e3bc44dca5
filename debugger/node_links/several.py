"""Whether a run is a part of a job with more nodes than this supervisor sees, as far as its command
line and its environment say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..record.safe_text import whole_number
from .agreed import Agreed

MOST = 1 << 14
"""Nodes, where nobody has said how many there are."""
_SIZES = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
"""The variables that name this task, and the number of tasks: every task of the job has a
supervisor of its own."""
_WITHIN = ("LOCAL_RANK", "SLURM_STEP_ID", "SLURM_JOB_ID")
"""The variables that tell tasks of one number apart: several steps of Slurm may be one job of
torch's."""


@dataclass(frozen=True, slots=True)
class Several:
    """`fewest` to `most` supervisors take part. `interface`: where to listen, if that was said.
    `task`: what only this one of them may be, in words; `ranks`: how many it starts (0: not known);
    `agreed`: where they meet, if that was said; `guessed`: nobody has said that there are others,
    and its ranks may know better."""

    fewest: int
    most: int
    interface: str = ""
    task: str = ""
    ranks: int = 0
    agreed: Agreed | None = None
    guessed: bool = False


def perhaps(interface: str) -> Several:
    """Describes a command that may start anything: a script that starts one node's part of a job,
    say."""
    return Several(1, MOST, interface, guessed=True)


def of_tasks(environment: Mapping[str, str], interface: str = "") -> Several | None:
    """Describes a command that is started as one of several tasks, each below its own supervisor;
    None where this one is not."""
    for rank, size in _SIZES:
        count = whole_number(environment.get(size), 7) or 0
        if environment.get(rank, "") and count > 1:
            return Several(count, count, interface, task_of(environment))
    return None


def task_of(environment: Mapping[str, str]) -> str:
    """Names this task by all variables that say so: one task may start several ranks, and name them
    by RANK alone."""
    names = dict.fromkeys((*(rank for rank, _ in _SIZES), *_WITHIN))
    return " ".join(f"{name}={environment[name][:20]}" for name in names if environment.get(name))

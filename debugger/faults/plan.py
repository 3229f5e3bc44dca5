"""The faults of a run, as its ranks and its supervisor share them: a file of the run directory, to
which several ranks may add at once.

A fault names ranks, an action with its arguments, and a moment. The same plan makes the same thing
happen at the same call in every run.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from itertools import permutations, product
from pathlib import Path
from typing import Any

from ..record.runs.run_directory import FAULTS_PLAN, FAULTS_SCHEMA
from ..record.safe_files import MOST_JSON_BYTES, parsed, read_regular, replacing

FILE = FAULTS_PLAN
"""In the run directory, written before the first rank starts. A run without faults has none."""
VARIABLE = "DISTDEBUG_FAULTS"
"""Set in the ranks' environment where there is a plan: nothing of this is imported otherwise."""


class When(Enum):
    """The count of a moment. All counts are a rank's own and begin at 0, as in every report."""

    OP = "op"
    """Calls of one op, whatever their group: `all_reduce#5`."""
    CALL = "call"
    """Calls of all ops: `call 40`."""
    SEQ = "seq"
    """The sequence number in a group: `seq 7`, `seq 7 of GROUP`."""
    STEP = "step"
    """`distdebug.step(n)`; in a program without it, the nth `step()` of an optimiser."""
    TIME = "time"
    """Seconds since the rank's default group was there: `3s`, `3s for 2s`."""
    FRAME = "frame"
    """Frames with data on a connection; of links only."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment at which a fault happens.

    `op`: for When.OP. `group`: for When.SEQ, its name or description; "" is any. `first`, `last`:
    inclusive; `last=None`: for ever. `stride`: each so many of them. `at_s`, `for_s`: for
    When.TIME; `for_s=None`: once, or to the end.
    """

    when: When
    op: str = ""
    group: str = ""
    first: int = 0
    last: int | None = 0
    stride: int = 1
    at_s: float = 0.0
    for_s: float | None = None

    def covers(self, number: int) -> bool:
        """Whether the call, step or frame of this number is one of its own."""
        return (
            number >= self.first
            and (self.last is None or number <= self.last)
            and (number - self.first) % self.stride == 0
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the plan. `number`: its place in the plan. `text`: as the user wrote it. `action`:
    a name in `actions.ACTIONS`. `ranks`: global ranks in which it happens; for a link, who sends.
    `arguments`: the action's, as JSON has them; times are in seconds, sizes in bytes."""

    number: int
    text: str
    action: str
    ranks: tuple[int, ...]
    moment: Moment
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Sender and receiver of each connection that it is about; none where it is not of
        links."""
        found = [(sender, receiver) for sender, receiver in self.arguments.get("pairs", ())]
        for one, other in permutations(self.arguments.get("sides", ()), 2):
            found += product(one, other)
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """All faults of a run, and the seed of whatever is random in them. `namespaces`: the ranks have
    a network of their own, which makes the faults of links, whatever the backend."""

    faults: tuple[Fault, ...]
    seed: int = 0
    namespaces: bool = False

    def of(self, rank: int) -> tuple[Fault, ...]:
        """Returns the faults that happen in this rank."""
        return tuple(fault for fault in self.faults if rank in fault.ranks)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as it stands in the run directory."""
        faults = []
        for fault in self.faults:
            moment = {**asdict(fault.moment), "when": fault.moment.when.value}
            faults.append({**asdict(fault), "moment": moment})
        found = {"schema": FAULTS_SCHEMA, "seed": self.seed, "faults": faults}
        return {**found, "namespaces": True} if self.namespaces else found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The reverse. Raises ValueError, KeyError or TypeError for anything else."""
        if value["schema"] != FAULTS_SCHEMA:
            raise ValueError(f"a plan of {value['schema']!r}; this version reads {FAULTS_SCHEMA!r}")
        faults = []
        for one in value["faults"]:
            moment = Moment(**{**one["moment"], "when": When(one["moment"]["when"])})
            faults.append(Fault(**{**one, "ranks": tuple(one["ranks"]), "moment": moment}))
        return cls(tuple(faults), value["seed"], value.get("namespaces", False))


def load(directory: Path) -> Plan | None:
    """The plan of a run; None where it has none. Raises as `Plan.from_json`, and OSError."""
    try:
        text = read_regular(directory / FILE, MOST_JSON_BYTES + 1)
    except FileNotFoundError:
        return None
    return Plan.from_json(parsed(text))


LOCK = f".{FILE}.lock"


def add(directory: Path, faults: Iterable[Fault]) -> Plan:
    """Add those whose text is not in the plan yet: every rank of a program asks for the same.

    Each gets the next number. Returns the whole plan. Raises OSError, and as `plan.load` where
    there is a plan that cannot be read.
    """
    # Not the directory itself: its supervisor holds that for as long as the run lasts.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(directory / LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = load(directory) or Plan(())
        rows = list(found.faults)
        for fault in faults:
            if fault.text not in {one.text for one in rows}:
                rows.append(replace(fault, number=len(rows)))
        whole = replace(found, faults=tuple(rows))
        with replacing(directory / FILE, lasts=False) as file:
            file.write(json.dumps(whole.to_json(), indent=2).encode())
        return whole
    finally:
        os.close(lock)

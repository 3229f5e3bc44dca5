"""What one rank would do, in the order in which it would do it: what the ranks of a plan leave
behind, and what the simulation executes. Standard library only.

A rank that is planned does not wait for its peers (but where a value is exchanged for real), so its
record says what it *would* do next after each call, if that call ever ended. Whether it does is
found by the simulation, over the programs of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..record.layout import Activity
from ..record.snapshot import Call, CallSite, Creation, Group, GroupKey, Note


@dataclass(frozen=True, slots=True)
class Made:
    """A collective, send or receive was called; one that is synchronous is waited for at once.
    `stream`: of the device, that the program was in; below 0 where that is not known."""

    call: Call
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Waited:
    """The thread waited for the asynchronous call with this number, at this line. On a device it is
    the stream that waits."""

    number: int
    site: CallSite | None = None
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Created:
    """All ranks of the world (of the group, where it is made so) must make this group together."""

    creation: Creation


@dataclass(frozen=True, slots=True)
class Destroyed:
    """The group was destroyed by this rank."""

    group: GroupKey
    site: CallSite | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The process ended. `signal` is None where it ended by itself."""

    exit_code: int | None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class CutOff:
    """Nothing more is known of the rank: its time or memory was up, or it waits for ever for what
    nobody gives (`stuck`). `activity` and `detail`: what for, where it is no call (see `Wait`).
    `joins`: its main thread waits for the others, at `site`."""

    why: str
    site: CallSite | None = None
    activity: Activity | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    stuck: bool = False
    joins: bool = False


Event = Made | Waited | Created | Destroyed | Ended | CutOff


@dataclass(frozen=True, slots=True)
class Undecided:
    """A decision of the program that hangs on a value which a plan does not have."""

    site: CallSite
    what: str


@dataclass(frozen=True, slots=True)
class Program:
    """One rank, from its start to its end.

    `events` are in program order; the calls of several threads are in the order of their issue.
    `notes` are those of the rank's record (exceptions, invalid arguments, ...), each with the
    number of events that came before it. `came_from`: who sent what a receive from any source has
    taken, by the number of the call, where the program knows: it may go on by that. `enough`: it
    was ended after as many steps as the plan was asked for.
    """

    rank: int
    world_size: int
    host: str = ""
    local_rank: int = -1
    pid: int = 0
    groups: Mapping[GroupKey, Group] = field(default_factory=dict)
    events: Sequence[Event] = ()
    notes: Sequence[tuple[int, Note]] = ()
    undecided: Sequence[Undecided] = ()
    came_from: Mapping[int, int] = field(default_factory=dict)
    enough: bool = False

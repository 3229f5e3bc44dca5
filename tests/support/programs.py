"""Programs of ranks for tests of the plan: made up, or taken from the records of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distdebug.plan.program import Created, Destroyed, Ended, Event, Made, Program, Waited
from distdebug.record.layout import CallState, GroupState
from distdebug.record.signature import Signature
from distdebug.record.snapshot import (
    Call,
    CallSite,
    Creation,
    Group,
    GroupKey,
    Note,
    Place,
)

WORLD = "0"
FILE = "/home/user/train.py"


@dataclass
class ProgramBuilder:
    """One rank's program as it grows."""

    rank: int
    world_size: int
    backend: str = "gloo"
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    notes: list[tuple[int, Note]] = field(default_factory=list)
    calls: int = 0
    creations: int = 0
    enough: bool = False

    def has(self, name: str, ranks: Sequence[int], desc: str = "", backend: str = "") -> None:
        key = (name, 0)
        ready = GroupState.READY
        self.groups[key] = Group(key, desc, tuple(ranks), backend or self.backend, ready)

    def makes(
        self,
        signature: Signature,
        group: str = WORLD,
        line: int = 88,
        *,
        is_async: bool = False,
        thread: int = 0,
        incarnation: int = 0,
        stream: int = 0,
        fails: bool = False,
    ) -> int:
        """Make a call; returns its number."""
        number = self.calls
        self.calls += 1
        site = CallSite(FILE, line, "step")
        state = CallState.FAILED if fails else CallState.COMPLETED
        key = (group, incarnation)
        place = Place((site,))
        call = Call(number, key, 0, signature, site, thread, state, is_async, place=place)
        self.events.append(Made(call, stream))
        return number

    def waits(self, number: int, line: int = 99, stream: int = 0) -> None:
        self.events.append(Waited(number, CallSite(FILE, line, "step"), stream))

    def creates(self, name: str, ranks: Sequence[int], line: int = 12) -> None:
        site = CallSite(FILE, line, "main")
        creation = Creation(self.creations, (name, 0), tuple(ranks), self.backend, site, 0, 0)
        self.creations += 1
        self.events.append(Created(creation))
        if self.rank in ranks:
            self.has(name, ranks)

    def destroys(self, name: str = WORLD) -> None:
        self.events.append(Destroyed((name, 0)))

    def notes_down(self, kind: str, message: str, line: int = 50, **data: Any) -> None:
        note = Note(kind, 0, message, CallSite(FILE, line, "step"), data)
        self.notes.append((len(self.events), note))

    def raises(self, message: str, line: int = 50) -> None:
        self.notes_down("exception", message, line)
        self.ends(1)

    def ends(self, code: int | None = 0, signal: int | None = None) -> None:
        self.events.append(Ended(code, signal))

    def program(self) -> Program:
        return Program(
            rank=self.rank,
            world_size=self.world_size,
            host="node0",
            local_rank=self.rank,
            pid=1000 + self.rank,
            groups=dict(self.groups),
            events=tuple(self.events),
            notes=tuple(self.notes),
            enough=self.enough,
        )


class Programs:
    """A world of ranks, all of which have the default group."""

    def __init__(self, size: int, backend: str = "gloo") -> None:
        self.size = size
        world = tuple(range(size))
        self.ranks = [ProgramBuilder(rank, size, backend) for rank in world]
        for builder in self.ranks:
            builder.has(WORLD, world, "default_pg")

    def __getitem__(self, rank: int) -> ProgramBuilder:
        return self.ranks[rank]

    def each(self, signature: Signature, group: str = WORLD, **more: Any) -> None:
        for builder in self.ranks:
            if (group, 0) in builder.groups:
                builder.makes(signature, group, **more)

    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        for builder in self.ranks:
            builder.creates(name, ranks)

    def end(self, ranks: Iterable[int] | None = None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            self.ranks[rank].ends()

    def programs(self) -> dict[int, Program]:
        return {builder.rank: builder.program() for builder in self.ranks}

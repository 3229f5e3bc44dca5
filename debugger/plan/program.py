"""The program of a rank: what it would do, in the order in which it would do it. Ranks of a plan
leave theirs behind, and the simulation executes them. Standard library only.

A rank that is planned does not wait for its peers (but where a value is exchanged for real), so its
record says what it *would* do next after each call, if that call ever ended. Whether it does is
found by the simulation, over the programs of all ranks.

The files are ours, but a plan may have been copied from elsewhere: what is damaged is left out, and
the program says from where on nothing is known of its rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..record.definitions import DAMAGED, Definitions
from ..record.layout import (
    AGREES_FLAG,
    ASYNC_FLAG,
    UNPLACED_FLAG,
    Activity,
    CallState,
    Definition,
    GroupState,
)
from ..record.safe_files import open_regular, whole
from ..record.signature import CHAIN_STEP, MASK
from ..record.snapshot import Call, CallSite, Creation, Group, GroupKey, Note
from ..record.writing.program_writer import FILES, FOLDER, WORDS


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
    """The program of a rank, from its start to its end.

    `events` are in program order; the calls of several threads are in the order of their issue.
    `notes` are those of the rank's record (exceptions, invalid arguments, ...), each with the
    number of events that came before it. `came_from`: who sent what a receive from any source has
    taken, by the number of the call, where the program knows: it may go on by that. `asked`: the
    calls of which it has asked in vain whether they are over. `enough`: it was ended after as many
    steps as the plan was asked for.
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
    asked: frozenset[int] = frozenset()
    enough: bool = False

    @property
    def calls(self) -> list[Call]:
        """The calls that the rank makes, in the order of their issue."""
        return [event.call for event in self.events if isinstance(event, Made)]


_KINDS = {word: kind for kind, word in WORDS.items()}


def read_programs(run_dir: Path) -> dict[int, Program]:
    """The program of each rank that was planned, by rank. Raises OSError where the folder of them
    cannot be read; it is empty where nothing was planned."""
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return {}
    files = {int(path.stem): path for path in folder.glob(f"*.{FILES}") if path.stem.isdigit()}
    return {rank: _Reader(rank).read(path) for rank, path in sorted(files.items())}


@dataclass(slots=True)
class _Counts:
    """The number of calls that a group or channel has had, and the chain of them; `before` the last
    one."""

    issued: int = 0
    chain: int = 0
    before: tuple[int, int] = (0, 0)


class _Reader:
    """Reads one file."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._world_size, self._local_rank, self._host, self._pid = 0, -1, "", 0
        self._known = Definitions()
        self._slots: dict[int, Group] = {}
        self._counts: dict[tuple[str, int], _Counts] = {}
        self._states: dict[int, GroupState] = {}
        self._kinds: dict[int, tuple[int, int]] = {}
        self._events: list[Event] = []
        self._notes: list[tuple[int, Note]] = []
        self._undecided: list[Undecided] = []
        self._came_from: dict[int, int] = {}
        self._asked: set[int] = set()
        self._calls: dict[int, tuple[int, _Counts]] = {}
        self._waits: list[tuple[int, int, int]] = []
        self._ended = False
        self._enough = False

    def read(self, path: Path) -> Program:
        with open(open_regular(path), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it was ended in the middle
                try:
                    row = json.loads(line)
                    if row[0] in _KINDS:
                        self._define(_KINDS[row[0]], *row[1:])
                    elif take := getattr(self, f"_on_{row[0]}", None):  # else of a newer version
                        take(*row[1:])
                except DAMAGED:
                    self._events.append(CutOff("its record is damaged from here on"))
                    self._ended = True
                    break
        if not self._ended:
            self._events.append(CutOff("its record ends here"))
        return Program(
            rank=self.rank,
            world_size=self._world_size,
            host=self._host,
            local_rank=self._local_rank,
            pid=self._pid,
            groups={
                group.key: replace(group, state=self._states[index])
                for index, group in self._slots.items()
            },
            events=tuple(self._events),
            notes=tuple(self._notes),
            undecided=tuple(self._undecided),
            came_from=self._came_from,
            asked=frozenset(self._asked),
            enough=self._enough,
        )

    # -- definitions ---------------------------------------------------------------------------

    def _on_rank(self, rank: int, world_size: int, local_rank: int, host: str, pid: int) -> None:
        del rank  # the file's name says it; a program may claim another one
        self._world_size, self._local_rank = whole(world_size), whole(local_rank)
        self._host, self._pid = str(host), whole(pid)

    def _define(self, kind: Definition, number: int, value: Any) -> None:
        known = self._known
        known.define(kind, number, json.dumps(value))
        if kind is Definition.CREATION:
            self._events.append(Created(known.creations[-1]))
        elif kind is Definition.NOTE:
            self._notes.append((len(self._events), known.notes[-1]))

    def _on_slot(self, index: int, definition: int) -> None:
        self._slots[index] = self._known.groups[definition]
        self._states[index] = GroupState.READY

    def _on_kind(self, number: int, *row: int) -> None:
        _, signature, agree, *_ = row
        self._kinds[number] = (signature, agree)

    # -- events --------------------------------------------------------------------------------

    def _on_call(
        self,
        number: int,
        slot: int,
        kind: int,
        site: int,
        flags: int,
        thread: int,
        channel: int,
        stream: int = 0,
    ) -> None:
        signature, agree = self._kinds[kind]
        place = ("channel", channel) if channel >= 0 else ("group", slot)
        counts = self._counts.setdefault(place, _Counts())
        seq = counts.issued
        counts.before = (seq, counts.chain)
        counts.issued = seq + 1
        counts.chain = (counts.chain * CHAIN_STEP + agree) & MASK
        self._calls[number] = (len(self._events), counts)
        call = Call(
            number=number,
            group=self._slots[slot].key,
            seq=seq,
            signature=self._known.signatures[signature],
            site=self._known.sites.get(site),
            place=None if flags & UNPLACED_FLAG else self._known.places.get(site),
            thread=thread,
            state=CallState.ISSUED,
            is_async=bool(flags & ASYNC_FLAG),
            agrees=bool(flags & AGREES_FLAG),
            chain=counts.chain,
        )
        self._events.append(Made(call, _stream(stream)))

    def _on_refused(self, number: int) -> None:
        at, counts = self._calls[number]
        match self._events[at:]:
            case [Made(call)] if call.number == number:
                counts.issued, counts.chain = counts.before
                self._events.pop()

    def _on_failed(self, number: int) -> None:
        at, _ = self._calls[number]
        match self._events[at : at + 1]:
            case [Made(call) as made] if call.number == number:  # else it was refused before
                self._events[at] = replace(made, call=replace(call, state=CallState.FAILED))

    def _on_came(self, number: int, source: int) -> None:
        made = self._events[self._calls[number][0]]
        if isinstance(made, Made):
            key = made.call.group
            ranks = next(group.ranks for group in self._slots.values() if group.key == key)
            self._came_from[number] = ranks[source]

    def _on_asked(self, number: int) -> None:
        self._asked.add(whole(number))

    def _on_wait(self, number: int, site: int, stream: int = 0) -> None:
        self._events.append(Waited(number, self._known.sites.get(site), _stream(stream)))

    def _on_destroyed(self, index: int, site: int) -> None:
        self._states[index] = GroupState.DESTROYED
        self._events.append(Destroyed(self._slots[index].key, self._known.sites.get(site)))

    def _on_waits(self, activity: int, detail: int, site: int) -> None:
        self._waits.append((activity, detail, site))

    def _on_left(self) -> None:
        if self._waits:
            self._waits.pop()

    def _on_undecided(self, site: int, what: str) -> None:
        said = Undecided(self._known.sites.get(site) or CallSite("", 0, ""), str(what))
        if said not in self._undecided:
            self._undecided.append(said)

    def _on_enough(self) -> None:
        self._enough = True

    def _on_ended(self, exit_code: int | None, signal: int | None) -> None:
        if not self._ended:
            self._ended = True
            self._events.append(Ended(exit_code, signal))

    def _on_cut(self, why: str, site: int, waits: bool = False, joins: bool = False) -> None:
        """By whoever ran the ranks. `waits`: the rank was in something that never ends; that it was
        in a wait for a call is on record only where the program itself waits for it. `joins`: its
        main thread waited for its others, one of which was in that."""
        if self._ended:
            return
        self._ended = True
        found = self._known.sites.get(site)
        if waits and self._waits:
            activity, detail, site = self._waits[-1]
            found = self._known.sites.get(site) or found
            about = self._known.details.get(detail, {})
            self._events.append(CutOff(str(why), found, Activity(activity), about))
            return
        match self._events[-1:]:
            case [Made(call)] if waits and call.is_async and (call.thread or not joins):
                self._events.append(Waited(call.number, call.site))
        self._events.append(CutOff(str(why), found, stuck=bool(waits), joins=bool(joins)))


def _stream(number: int) -> int:
    return whole(number) if number >= 0 else -1

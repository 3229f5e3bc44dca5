"""Executes the programs of all ranks on a model of blocking, until all have ended or nothing moves.

Event by event, and each once: a thread goes on until it must wait, and is woken by what it waits
for. Times are those of a clock that gives every step the same, so that only the order of things
counts; who is behind goes first. What the ranks have done then is in `meetings.Standing`.

Rules:
1. A collective ends as `model` says, once those whom it needs have made the one with its sequence
   number. Where their signatures do not fit, whoever waits stays there.
2. A send meets the first receive that takes it, a receive from any source what was sent first. What
   a rank had posted and not seen through when it ended does not happen.
3. On a device a call ends when all have made it and the group's calls before it have ended. The
   program goes on beside it, and waits at its end.
4. A group is made when its members have come; the default group, when all of its ranks have.
5. A rank of which no more is known (`CutOff`) stands still, and nobody knows where.

Each thread of a rank does what it does in its own order. A program has the events of all threads
of a rank in the order of their issue, where nobody waited. Of two threads that order is one of
many: it is kept within each group and each channel of messages, where torch demands that it be the
same on all ranks, and nowhere else.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ..diagnosis.facts.blocking import Model
from ..diagnosis.facts.world import DEFAULT_GROUP
from ..record.layout import Activity, CallState
from ..record.notes import UnwindingNote
from ..record.snapshot import Call, GroupKey, Note, place_of
from .limits import TICK_NS
from .meetings import Calls, End, Kind, Meeting, MeetingPlace, Membership, Standing, Stop
from .program import Created, CutOff, Destroyed, Ended, Event, Made, Program, Waited


@dataclass(frozen=True, slots=True)
class Joins:
    """The rank makes a default group, in which all of its ranks must meet."""

    group: GroupKey


@dataclass(frozen=True, slots=True)
class InTurn:
    """The next call comes when the rank has made so many in that group or channel."""

    where: Hashable
    turn: int


@dataclass(frozen=True, slots=True)
class AllThreads:
    """The process ends, or its main thread goes on, when its other threads have done what they
    do."""


Doing = Event | Note | Joins | InTurn | AllThreads


def doings(program: Program) -> list[Doing]:
    """All that the rank does, its notes and the groups that it joins included, in order."""
    joins = [key for key, group in program.groups.items() if group.desc == DEFAULT_GROUP]
    joins.sort(key=lambda key: key[1])
    notes = sorted(_placed(program), key=lambda note: note[0])
    found: list[Doing] = []
    if joins and joins[0][1] == 0:
        found.append(Joins(joins.pop(0)))
    later = set(joins)
    at_note = 0
    for at, event in enumerate(program.events):
        while at_note < len(notes) and notes[at_note][0] <= at:
            found.append(notes[at_note][1])
            at_note += 1
        if later:
            of = event.call.group if isinstance(event, Made) else getattr(event, "group", None)
            ends = isinstance(event, Ended | CutOff)
            for key in [key for key in joins if key in later and (ends or key == of)]:
                later.discard(key)
                found.append(Joins(key))
        found.append(event)
    last = [note for _, note in notes[at_note:]]
    if last and found and isinstance(found[-1], Ended | CutOff):
        return [*found[:-1], *last, found[-1]]  # an ended process says nothing more
    return found + last


def _placed(program: Program) -> Iterator[tuple[int, Note]]:
    """The notes, each with the number of events before it. What a rank notes as it enters a call
    stands before that call, which may never end."""
    at_call = {
        event.call.number: at for at, event in enumerate(program.events) if isinstance(event, Made)
    }
    for at, note in program.notes:
        entering = UnwindingNote.read(note.data) if UnwindingNote.matches(note) else None
        yield (min(at, at_call.get(entering.call, at)) if entering else at), note


def by_thread(program: Program) -> list[list[Doing]]:
    """The same, for each thread; the main thread's first."""
    rows = doings(program)
    threads = {row.call.thread for row in rows if isinstance(row, Made)}
    if len(threads) < 2:
        return [rows]
    main = min(threads)
    found: dict[int, list[Doing]] = {main: []}
    of_call: dict[int, int] = {}
    turns: dict[Hashable, int] = {}
    for row in rows:
        thread = main
        if isinstance(row, Made):
            thread = of_call[row.call.number] = row.call.thread
            where = place_of(row.call)
            turn = turns.get(where, 0)
            turns[where] = turn + 1
            found.setdefault(thread, []).append(InTurn(where, turn))
        elif isinstance(row, Waited):
            thread = of_call.get(row.number, main)
        elif isinstance(row, Ended) or (isinstance(row, CutOff) and row.joins):
            found[main].append(AllThreads())
        found.setdefault(thread, []).append(row)
    return list(found.values())


@dataclass(slots=True, eq=False)
class PlannedThread:
    """A thread of a rank. `stop`: what it stands still in; `makes`: the group that it has when what
    it waits for is there."""

    rank: Standing
    doings: list[Doing]
    order: int
    clock_ns: int
    at: int = 0
    stop: Stop | None = None
    makes: Membership | None = None
    yielded: bool = False


class Runnable:
    """The threads that may go on; the one that is furthest behind goes first."""

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, PlannedThread]] = []
        self._parked: dict[Hashable, list[PlannedThread]] = {}

    def push(self, thread: PlannedThread) -> None:
        """Lets the thread go on from its own time on."""
        heapq.heappush(self._ready, (thread.clock_ns, thread.order, thread))

    def pop(self) -> PlannedThread | None:
        """The next one; None when nobody may go on."""
        return heapq.heappop(self._ready)[2] if self._ready else None

    def stands_still(self, thread: PlannedThread, end: End, stop: Stop) -> bool:
        """The thread waits for that; False, so that it does not go on."""
        thread.stop = stop
        return self.park(thread, end)

    def over(self, end: End, now_ns: int) -> None:
        """Ends this: who waits for it goes on."""
        end.done_ns = now_ns
        self.unpark(end, now_ns)

    def park(self, thread: PlannedThread, what: Hashable) -> bool:
        """The thread goes on after `unpark` of the same; False, so that it does not go on."""
        self._parked.setdefault(what, []).append(thread)
        return False

    def is_awaited(self, end: End) -> bool:
        """Whether a thread waits for this."""
        return end in self._parked

    def unpark(self, what: Hashable, now_ns: int) -> None:
        for thread in self._parked.pop(what, ()):
            thread.clock_ns = max(thread.clock_ns, now_ns)
            self.push(thread)


class Simulation:
    """`programs` of the ranks that were planned; `start_ns` is Unix time."""

    place_type: ClassVar[type[MeetingPlace]] = MeetingPlace

    def __init__(self, programs: Mapping[int, Program], model: Model, start_ns: int) -> None:
        self.model = model
        self.ranks = {
            number: Standing(program, start_ns) for number, program in sorted(programs.items())
        }
        self.threads: dict[int, list[PlannedThread]] = {}
        self._planned = frozenset(programs)
        self._world_size = max(
            (
                len(group.ranks)
                for program in programs.values()
                for group in program.groups.values()
                if group.desc == DEFAULT_GROUP
            ),
            default=0,
        )
        self._places: dict[tuple[GroupKey, tuple[int, ...]], MeetingPlace] = {}
        self._creations: dict[Hashable, Meeting] = {}
        self._order = itertools.count()
        self._runnable = Runnable()
        self._calls = Calls(model, self._planned, self._runnable.over)
        self._turns: dict[Hashable, int] = {}
        self._several: set[int] = set()
        """The ranks with more than one thread."""
        for standing in self.ranks.values():
            self._begin(standing, start_ns)

    def run(self) -> None:
        """To the end."""
        while (thread := self._runnable.pop()) is not None:
            self._advance(thread)

    @property
    def now_ns(self) -> int:
        """The latest moment of any rank."""
        return max(thread.clock_ns for threads in self.threads.values() for thread in threads)

    # -- threads -------------------------------------------------------------------------------

    def _begin(self, standing: Standing, start_ns: int) -> None:
        program = standing.program
        made = {event.creation.group for event in program.events if isinstance(event, Created)}
        rows = by_thread(program)
        joined = {row.group for thread in rows for row in thread if isinstance(row, Joins)}
        for key, group in program.groups.items():
            # A world that some ranks of the job have made for themselves: which of them are in it
            # is not on record, for they have other numbers there. Nobody waits in it.
            is_part = group.desc == DEFAULT_GROUP and len(group.ranks) < self._world_size
            if is_part or program.rank not in group.ranks:
                continue
            place = self._places.get((key, group.ranks))
            if place is None:
                size = len(self._planned.intersection(group.ranks))
                place = self._places[key, group.ranks] = self.place_type(key, group.ranks, size)
            standing.groups[key] = Membership(
                place,
                place.places.get(program.rank, 0),
                group.backend,
                ready=key not in made and key not in joined,
            )
        if len(rows) > 1:
            self._several.add(program.rank)
        threads = [PlannedThread(standing, row, next(self._order), start_ns) for row in rows]
        self.threads[program.rank] = threads
        for thread in threads:
            self._runnable.push(thread)

    def _advance(self, thread: PlannedThread) -> None:
        """Until it must wait."""
        if thread.stop is not None:
            thread.stop = None
            if thread.makes is not None:
                thread.makes.ready = True
                thread.makes = None
        doings = thread.doings
        while thread.at < len(doings):
            doing = doings[thread.at]
            if doing.__class__ is Made:
                goes_on = self._make(thread, doing.call)
            else:
                goes_on = self._do(thread, doing)
            if not goes_on:
                return
        if thread.rank.program.rank in self._several:
            self._runnable.unpark(("threads", thread.rank.program.rank), thread.clock_ns)

    def _do(self, thread: PlannedThread, doing: Doing) -> bool:
        thread.clock_ns += TICK_NS
        match doing:
            case Waited():
                return self._wait(thread, doing)
            case Created():
                return self._create(thread, doing)
            case Joins():
                return self._join(thread, doing)
            case Destroyed():
                return self._destroy(thread, doing)
            case Ended():
                return self._end(thread, doing)
            case InTurn():
                where = (thread.rank.program.rank, doing.where)
                if self._turns.get(where, 0) < doing.turn:
                    return self._runnable.park(thread, (*where, doing.turn))
            case AllThreads():
                rank = thread.rank.program.rank
                for other in self.threads[rank]:
                    if other is not thread and (other.at < len(other.doings) or other.stop):
                        return self._runnable.park(thread, ("threads", rank))
            case Note():
                thread.rank.notes.append(replace(doing, time_ns=thread.clock_ns))
            case CutOff():
                self._cut_off(thread, doing)
                return False
        thread.at += 1
        return True

    def _cut_off(self, thread: PlannedThread, doing: CutOff) -> None:
        if doing.stuck and self._stands_in_its_last_call(thread):
            return
        thread.at = len(thread.doings)
        if doing.activity is None:
            thread.rank.cut = doing
            return
        detail = dict(doing.detail)
        thread.stop = Stop(doing.activity, thread.clock_ns, None, doing.site, detail)

    def _stands_in_its_last_call(self, thread: PlannedThread) -> bool:
        """A rank whose call on a device brings a value that never comes has got no further than to
        that call: what it would have done beside it is not known. In a stream of its own that may
        be what helps the others."""
        rank = thread.rank
        before = thread.doings[thread.at - 1] if thread.at else None
        if not isinstance(before, Made | Waited) or before.stream > 0 or not rank.calls:
            return False
        number = len(rank.calls) - 1
        if isinstance(before, Waited):
            number = rank.own_number(before.number) or 0
        call, end = rank.calls[number], rank.ends[number]
        member = rank.groups.get(call.group)
        on_device = member is not None and member.kinds[id(call.signature)].on_device
        if isinstance(end, int) or end.done_ns or not on_device:
            return False
        site = before.site if isinstance(before, Waited) else call.site
        stop = Stop(Activity.IN_CALL, thread.clock_ns, number, site or call.site)
        self._runnable.stands_still(thread, end, stop)
        return True

    # -- calls ---------------------------------------------------------------------------------

    def _make(self, thread: PlannedThread, call: Call) -> bool:
        rank = thread.rank
        thread.clock_ns = now_ns = thread.clock_ns + TICK_NS
        thread.at += 1
        number = len(rank.calls)
        if call.number != number:
            rank.by_number[call.number] = number
        member = rank.groups.get(call.group)
        signature = call.signature
        kind: Kind | None = None
        end: End | int = now_ns
        seq = call.seq
        if member is not None:
            kind = member.kinds.get(id(signature))
            if kind is None:
                kind = self._calls.kind_of(rank, member, signature)
            if signature.peer is None:
                seq = member.issued
                end = self._calls.collective(rank, member, kind, number, now_ns)
            else:
                seq, end = self._calls.message(rank, member, call, kind, number, now_ns)
        if call.state is CallState.FAILED:
            end = now_ns  # this rank does not wait for it; the others may still meet it there
        rank.site = call.site or rank.site
        rank.calls.append(call)
        rank.seqs.append(seq)
        rank.issued_ns.append(now_ns)
        rank.ends.append(end)
        if rank.program.rank in self._several:
            where = (rank.program.rank, place_of(call))
            turn = self._turns[where] = self._turns.get(where, 0) + 1
            self._runnable.unpark((*where, turn), now_ns)
            self._runnable.unpark(("call", rank.program.rank, call.number), now_ns)
        if isinstance(end, int) or end.done_ns:
            return True
        if call.is_async or kind is None or not kind.blocks:
            return True
        return self._runnable.stands_still(
            thread, end, Stop(Activity.IN_CALL, now_ns, number, call.site)
        )

    def _wait(self, thread: PlannedThread, doing: Waited) -> bool:
        rank = thread.rank
        number = rank.own_number(doing.number)
        if number is None:
            if rank.program.rank in self._several:
                return self._runnable.park(thread, ("call", rank.program.rank, doing.number))
            thread.at += 1
            return True
        thread.at += 1
        rank.site = doing.site or rank.site
        end = rank.ends[number]
        if isinstance(end, int) or end.done_ns:
            return True
        call = rank.calls[number]
        member = rank.groups.get(call.group)
        kind = member.kinds[id(call.signature)] if member else None
        if kind is not None and not kind.blocks:
            return True
        stop = Stop(Activity.IN_CALL, thread.clock_ns, number, doing.site or call.site)
        return self._runnable.stands_still(thread, end, stop)

    # -- groups, and the end -------------------------------------------------------------------

    def _create(self, thread: PlannedThread, doing: Created) -> bool:
        rank, creation = thread.rank, doing.creation
        thread.at += 1
        rank.creations.append(replace(creation, time_ns=thread.clock_ns))
        member = rank.groups.get(creation.group)
        detail = {
            "op": "new_group",
            "name": creation.group[0],
            "ranks": list(creation.ranks),
            "backend": creation.backend,
        }
        stop = Stop(Activity.NEW_GROUP, thread.clock_ns, None, creation.site, detail)
        blocks = self.model.creation_blocks(creation.backend)
        where = ("made", creation.group, creation.ranks)
        return self._meet(thread, where, creation.ranks, member, stop, blocks=blocks)

    def _join(self, thread: PlannedThread, doing: Joins) -> bool:
        thread.at += 1
        group = thread.rank.program.groups[doing.group]
        stop = Stop(Activity.INIT, thread.clock_ns, None, None, {"op": "init_process_group"})
        member = thread.rank.groups.get(doing.group)
        if member is None:
            return True
        where = ("joined", doing.group, group.ranks)
        return self._meet(thread, where, group.ranks, member, stop, blocks=True)

    def _meet(
        self,
        thread: PlannedThread,
        where: Hashable,
        ranks: tuple[int, ...],
        member: Membership | None,
        stop: Stop,
        *,
        blocks: bool,
    ) -> bool:
        if thread.rank.program.rank not in ranks:
            return True
        meeting = self._creations.get(where)
        if meeting is None:
            meeting = self._creations[where] = Meeting()
        meeting.came += 1
        if meeting.came == len(self._planned.intersection(ranks)):
            self._runnable.over(meeting, thread.clock_ns)
        if meeting.done_ns or not blocks:
            if member is not None:
                member.ready = True
            return True
        thread.makes = member
        return self._runnable.stands_still(thread, meeting, stop)

    def _destroy(self, thread: PlannedThread, doing: Destroyed) -> bool:
        if not self._drained(thread, doing.group):
            return False
        thread.at += 1
        thread.rank.site = doing.site or thread.rank.site
        member = thread.rank.groups.get(doing.group)
        if member is not None:
            member.destroyed = True
        return True

    def _drained(self, thread: PlannedThread, group: GroupKey | None) -> bool:
        """No call of the group (of any) is under way on a device; else the thread waits for it."""
        rank = thread.rank
        if not any(
            kind.on_device for member in rank.groups.values() for kind in member.kinds.values()
        ):
            return True
        for number, call in enumerate(rank.calls):
            end = rank.ends[number]
            if isinstance(end, int) or end.done_ns or group not in (None, call.group):
                continue
            kind = rank.groups[call.group].kinds[id(call.signature)]
            if kind.on_device:
                stop = Stop(Activity.IN_CALL, thread.clock_ns, number, call.site)
                return self._runnable.stands_still(thread, end, stop)
        return True

    def _end(self, thread: PlannedThread, doing: Ended) -> bool:
        rank = thread.rank
        if doing.exit_code == 0 and doing.signal is None and not self._drained(thread, None):
            return False
        if rank.posted and not thread.yielded:
            thread.yielded = True  # what others do before this moment comes first
            self._runnable.push(thread)
            return False
        thread.at = len(thread.doings)
        rank.exit, rank.ended_ns = doing, thread.clock_ns
        if rank.posted:
            for member in rank.groups.values():
                member.place.forget(rank.program.rank)
        return True

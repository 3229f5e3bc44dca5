"""The threads of a planned rank, each with what it does in its own order.

A program has the events of all threads of a rank in the order of their issue, where nobody waited.
Of two threads that order is one of many: it is kept within each group and each channel of messages,
where torch demands that it be the same on all ranks, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from ..diagnosis.facts.world import DEFAULT_GROUP
from ..record.notes import UnwindingNote
from ..record.snapshot import GroupKey, Note, place_of
from .program import CutOff, Ended, Event, Made, Program, Waited


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

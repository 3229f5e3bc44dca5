"""The dumps of a job as a snapshot: each rank as one of ours would be that stands where its dump
ends, so that the diagnosis judges them as it does any run.

A rank waits in its oldest call that is not complete. What it has issued behind that has not begun:
its device comes to it later. When a call ended is not on record: where it has, its end stands at
its beginning. There is no clock that says now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..record.layout import Activity, GroupState
from ..record.snapshot import Group, GroupKey, Knows, Process, Rank, Snapshot, Wait
from ..record.writing.whole_records import write_whole
from .completion import is_symmetric
from .dump_history import THREAD, DumpHistory, parting
from .flight_recorder import Entry, launch_of, libraries
from .trace import Trace, TracedGroup

GLOO = "gloo"


def as_snapshot(trace: Trace, taken_ns: int) -> Snapshot:
    """All ranks that have a dump. `taken_ns`: when the dumps were written, or, where that is not
    known, when their last call was made."""
    told = GLOO not in libraries(trace.dumps.values())
    ranks = _Ranks(trace, taken_ns)
    return Snapshot(
        taken_ns,
        trace.world_size,
        {number: ranks.of(number) for number in sorted(trace.dumps)},
        knows=Knows(clock=False, root=False, messages=told, completion=told),
    )


def write_records(snapshot: Snapshot, folder: Path) -> None:
    """A flight record for each rank, for those who read run directories. Raises OSError."""
    for number, rank in snapshot.ranks.items():
        one = replace(rank, waits=rank.waits[:1], heartbeat_ns=snapshot.taken_ns)
        write_whole(folder / f"{number}.flight", one, {}, len(snapshot.ranks))


class _Ranks:
    def __init__(self, trace: Trace, taken_ns: int) -> None:
        self._trace = trace
        self._taken_ns = taken_ns
        self._keys = _keys(trace.groups)
        self._partings = {id(group): parting(trace, group) for group in trace.groups}
        self._groups: dict[int, list[TracedGroup]] = {rank: [] for rank in trace.dumps}
        for group in trace.groups:
            for rank in group.ranks:
                if rank in self._groups:
                    self._groups[rank].append(group)

    def of(self, number: int) -> Rank:
        """The rank, its calls in its history."""
        trace = self._trace
        groups = {self._keys[one.key]: one for one in self._groups[number]}
        history = DumpHistory(trace, number, groups, self._partings)
        dump, front = trace.dumps[number], trace.first_pending(number)
        return Rank(
            rank=number,
            world_size=trace.world_size,
            pid=0,
            process=Process(alive=True),
            started_ns=dump.entries[0].created_ns if dump.entries else self._taken_ns,
            heartbeat_ns=dump.written_ns or self._taken_ns,
            calls=len(dump.entries) + len(dump.unfinished),
            layer_serial=len(dump.entries),
            free_threads=0 if front is not None else 1,
            groups={key: self._state(number, key, one, front) for key, one in groups.items()},
            channels=() if dump.plain else list(history.channels(front)),
            waits=self._waits(number, front, history) if front is not None else (),
            history=history,
        )

    def _waits(self, number: int, front: Entry, history: DumpHistory) -> Sequence[Wait]:
        """The call that it stands in; of a batch of messages all."""
        if number in self._trace.lost:
            return [Wait(THREAD, Activity.IN_CALL, 0, front.created_ns)]
        parts = [front]
        if front.seq is None:
            launch = launch_of(front)
            parts = [
                one
                for one in self._trace.dumps[number].entries
                if launch_of(one) == launch and history.place(one) is not None
            ] or parts
        found = []
        for one in parts:
            place, at = history.place(one), history.number(one)
            guessed = place is not None and not self._trace.is_whole(number, place[2])
            wait = Wait(THREAD, Activity.IN_CALL, at, front.created_ns, at, site=one.site)
            found.append(replace(wait, guessed=True) if guessed else wait)
        return found

    def _state(self, number: int, key: GroupKey, group: TracedGroup, front: Entry | None) -> Group:
        calls, part = group.calls.get(number), self._partings[id(group)]
        issued = begun = completed = self._issued(group, number)
        if calls is not None and calls.first_pending is not None and front is not None:
            completed = calls.first_pending.seq or 0
            lost, edge, launch = number in self._trace.lost, front.record_id, launch_of(front)
            behind = (
                entry.seq or 0
                for entry in calls.entries
                if not entry.done
                and (lost or (entry.record_id > edge and launch_of(entry) != launch))
            )
            begun = min(behind, default=issued)
        return Group(
            key=key,
            desc=group.key[1],
            ranks=group.ranks,
            backend=calls.entries[0].library if calls is not None and calls.entries else "",
            state=GroupState.READY,
            issued=issued,
            chain=part.chain(number, issued) if part is not None else 0,
            begun=begun,
            completed=completed,
            members_known=not group.derived or self._has_all_calls(group),
        )

    def _has_all_calls(self, group: TracedGroup) -> bool:
        """Whether who is in it is who has called in it: the records of all ranks are there, with
        the calls that are complete."""
        made = (entry for calls in group.calls.values() for entry in calls.entries[:1])
        return (
            not self._trace.missing
            and all(entry.tells_completion for entry in made)
            and not any(rank in self._trace.active_only for rank in group.ranks)
        )

    def _issued(self, group: TracedGroup, rank: int) -> int:
        """Counts the collectives of the group that it has issued. Where it has lost its calls, or
        left complete ones out, as many as the others' waiting lets conclude: it has come by all of
        them that are complete, and has not come to those that wait for it."""
        calls, dump = group.calls.get(rank), self._trace.dumps[rank]
        oldest = self._oldest.get(id(group), ())
        known = calls.reached + 1 if calls is not None else 0
        if calls is None and dump.whole:
            # Of a rank that has made no call at all nobody knows whether it had to make these.
            owes = not dump.uncalled or oldest or _needs_all(group)
            return 0 if owes else _most(group)
        for seq, waiting in oldest:
            if seq >= known:
                if not self._has_gone_on(rank, waiting, (id(group), seq)):
                    return seq if calls is None else known
                known = seq + 1
        return known if calls is not None else max(known, _most(group))

    def _has_gone_on(self, rank: int, other: int, call: tuple[int, int]) -> bool:
        """Whether it has made this call and completed it, though its record does not say so: a
        dump of active calls alone has forgotten it, and has one that `other` made after it."""
        if rank not in self._trace.active_only:
            return False
        theirs = self._pending[other]
        return any(theirs.get(one, -1) > theirs[call] for one in self._pending.get(rank, ()))

    @cached_property
    def _oldest(self) -> dict[int, list[tuple[int, int]]]:
        """By group the oldest calls that pend on its ranks, in order, each with such a rank."""
        found: dict[int, dict[int, int]] = {}
        for group in self._trace.groups:
            for rank, calls in group.calls.items():
                if calls.first_pending is not None:
                    seqs = found.setdefault(id(group), {})
                    seqs.setdefault(calls.first_pending.seq or 0, rank)
        return {group: sorted(seqs.items()) for group, seqs in found.items()}

    @cached_property
    def _pending(self) -> dict[int, dict[tuple[int, int], int]]:
        """Returns the place of each pending collective in its rank's record."""
        found: dict[int, dict[tuple[int, int], int]] = {}
        for group in self._trace.groups:
            for rank, calls in group.calls.items():
                for seq, entries in calls.by_seq.items() if calls.first_pending else ():
                    if not entries[0].done:
                        found.setdefault(rank, {})[id(group), seq] = entries[0].record_id
        return found


def _most(group: TracedGroup) -> int:
    return 1 + max((calls.reached for calls in group.calls.values()), default=-1)


def _needs_all(group: TracedGroup) -> bool:
    """Whether a call of the group is over that nobody ends alone, without being known to be
    complete: who has come to none of its calls has made it fail."""
    made = (entry for calls in group.calls.values() for entry in calls.entries)
    return any(is_symmetric(one) and not (one.done and one.tells_completion) for one in made)


def _keys(groups: Sequence[TracedGroup]) -> dict[tuple[str, str, int], GroupKey]:
    """Our key of each group: one of ours has a name and a number of its life alone."""
    found: dict[tuple[str, str, int], GroupKey] = {}
    named: Counter[str] = Counter()
    for group in groups:
        if group.key not in found:
            name = group.key[0]
            found[group.key] = (name, named[name])
            named[name] += 1
    return found

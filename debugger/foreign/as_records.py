"""The dumps of a job as our own flight records, for those who read run directories: each rank as
one of ours would be that stands where its dump ends.

Its calls are there with their lines, and it waits in the oldest one that is not complete. When a
call ended is not on record: where it has, its end stands at its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..record.layout import Activity, CallState, GroupState, Phase
from ..record.snapshot import Call, Channel, Group, GroupKey, Process, Rank, Wait
from ..record.writing.whole_records import MOST_CALLS, write_whole
from .flight_recorder import COALESCED, Entry
from .trace import Trace, TracedGroup
from .waits import waits

MANY_RANKS = 256
CALLS_OF_MANY = 256
"""Of so many ranks, records hold the last calls only: they are there to be looked at."""
_THREAD = 1
_Place = tuple[GroupKey, str, int]
"""Where messages are counted: in a group, op, the global rank of the peer."""


def write(trace: Trace, folder: Path, taken_ns: int) -> None:
    """A record for each rank that has a dump. `taken_ns`: when that was written. Raises OSError."""
    records = _Records(trace, taken_ns)
    most = MOST_CALLS if len(trace.dumps) <= MANY_RANKS else CALLS_OF_MANY
    for number in sorted(trace.dumps):
        rank, calls = records.of(number)
        write_whole(folder / f"{number}.flight", rank, {}, most, calls)


class _Records:
    def __init__(self, trace: Trace, taken_ns: int) -> None:
        self._trace = trace
        self._taken_ns = taken_ns
        self._keys = _keys(trace.groups)
        self._groups: dict[int, list[TracedGroup]] = {rank: [] for rank in trace.dumps}
        self._where: dict[int, dict[int, tuple[TracedGroup, int | None]]] = {}
        for group in trace.groups:
            for rank in group.ranks:
                if rank in self._groups:
                    self._groups[rank].append(group)
        self._issued = _issued(trace)
        self._sorted_out()

    def _sorted_out(self) -> None:
        """Of each entry the group, and of a message the peer, by its identity."""
        self._where = {rank: {} for rank in self._trace.dumps}
        for group in self._trace.groups:
            for rank, calls in group.calls.items():
                where = self._where[rank]
                for entries in calls.by_seq.values():
                    where.update((id(entry), (group, None)) for entry in entries)
            for (source, destination), channel in group.channels.items():
                if source in self._where:
                    where = self._where[source]
                    where.update((id(entry), (group, destination)) for entry in channel.sends)
                if destination in self._where:
                    where = self._where[destination]
                    where.update((id(entry), (group, source)) for entry in channel.receives)

    def of(self, number: int) -> tuple[Rank, Sequence[Call]]:
        """The rank and its calls, in their order."""
        entries = self._trace.dumps[number].entries
        calls: list[Call] = []
        last: dict[object, int] = {}
        counts: Counter[_Place] = Counter()
        pending: Call | None = None
        for entry in entries:
            call = self._call(number, entry, len(calls), counts)
            if call is None:
                continue
            calls.append(call)
            last[call.group if entry.seq is not None else _place(call)] = call.number
            if pending is None and not entry.done:
                pending = call
        begun_ns = min((call.issued_ns for call in calls), default=self._taken_ns)
        rank = Rank(
            rank=number,
            world_size=self._trace.world_size,
            pid=0,
            process=Process(alive=True),
            started_ns=begun_ns,
            phase=Phase.RUNNING,
            heartbeat_ns=self._taken_ns,
            calls=len(calls),
            layer_serial=len(calls),
            free_threads=0 if pending is not None else 1,
            groups=dict(self._states(number, last)),
            channels=[
                Channel(*place, tag=0, issued=count, chain=0, last=last.get(place))
                for place, count in counts.items()
            ],
            waits=() if pending is None else (_wait(pending),),
        )
        return rank, calls

    def _call(self, number: int, entry: Entry, index: int, counts: Counter[_Place]) -> Call | None:
        """None: what ends a coalesced call, of which the parts are on record, or a message of which
        it is not known whose."""
        known = self._where[number].get(id(entry))
        if known is None or entry.signature.op == COALESCED:
            return None
        group, peer = known
        key = self._keys[group.key]
        signature, seq = entry.signature, entry.seq
        if seq is None:
            if peer is None:
                return None
            signature = replace(signature, peer=peer)
            place = (key, signature.op, peer)
            if place not in counts:
                counts[place] = self._before(group, signature.op, number, peer)
            seq = counts[place]
            counts[place] += 1
        return Call(
            number=index,
            group=key,
            seq=seq,
            signature=signature,
            site=entry.site,
            thread=_THREAD,
            state=CallState.COMPLETED if entry.done else CallState.STARTED,
            issued_ns=entry.created_ns,
            started_ns=entry.created_ns,
            completed_ns=max(entry.created_ns, 1) if entry.done else 0,
        )

    def _before(self, group: TracedGroup, op: str, number: int, peer: int) -> int:
        """How many messages of the channel went before those on record of this end: where a record
        has lost its beginning, as many as make the complete ones of both ends equally many."""
        ends = (number, peer)
        if all(rank not in self._trace.dumps or self._trace.dumps[rank].whole for rank in ends):
            return 0
        channel = group.channels[ends if op == "send" else (peer, number)]
        sent = sum(entry.done for entry in channel.sends)
        received = sum(entry.done for entry in channel.receives)
        return max(sent, received) - (sent if op == "send" else received)

    def _states(self, number: int, last: Mapping[object, int]) -> Iterator[tuple[GroupKey, Group]]:
        libraries = {
            entry.group: entry.library
            for entry in self._trace.dumps[number].entries
            if entry.library
        }
        for group in self._groups[number]:
            key = self._keys[group.key]
            yield (
                key,
                Group(
                    key=key,
                    desc=group.key[1],
                    ranks=group.ranks,
                    backend=libraries.get(group.key[:2], ""),
                    state=GroupState.READY,
                    issued=self._issued[id(group)].get(number, 0),
                    last=last.get(key),
                ),
            )


def _wait(call: Call) -> Wait:
    return Wait(
        thread=_THREAD,
        activity=Activity.IN_CALL,
        serial=call.number,
        since_ns=call.issued_ns,
        call=call.number,
        site=call.site,
    )


def _place(call: Call) -> _Place:
    assert call.signature.peer is not None
    return (call.group, call.signature.op, call.signature.peer)


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


def _issued(trace: Trace) -> Mapping[int, Mapping[int, int]]:
    """How many collectives each rank has issued, by the group's identity. Of a rank that has lost
    its calls of a group, or left complete ones out, as many as the others' waiting lets conclude:
    it has come by all of them that are complete, and has not come to those that wait for it."""
    found: dict[int, dict[int, int]] = {}
    of_group = {id(group): group for group in trace.groups}
    missing: dict[tuple[int, int], int] = {}
    for group in trace.groups:
        found[id(group)] = {rank: calls.reached + 1 for rank, calls in group.calls.items()}
    for wait in waits(trace):
        if wait.seq is None:
            continue
        known = found[id(wait.group)]
        for rank in wait.beyond:
            known[rank] = max(known.get(rank, 0), wait.seq + 1)
        for rank in wait.absent:
            at = (id(wait.group), rank)
            missing[at] = min(wait.seq, missing.get(at, wait.seq))
    for number, group in of_group.items():
        front = max(found[number].values(), default=0)
        for rank in group.ranks:
            dump = trace.dumps.get(rank)
            if dump is not None and not dump.whole and rank not in found[number]:
                found[number][rank] = missing.get((number, rank), front)
    return found

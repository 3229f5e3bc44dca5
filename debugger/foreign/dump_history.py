"""The calls of one rank's dump, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ..record.layout import CallState
from ..record.signature import ANY_SOURCE
from ..record.snapshot import Call, Channel, GroupKey, RecalledHistory
from .flight_recorder import COALESCED, Entry, GroupName, launch_of
from .partings import Parting, odd_message
from .trace import Trace, TracedGroup

THREAD = 1
_Place = tuple[GroupKey, str, int]
"""Where messages are counted: in a group, op, the global rank of the peer."""


class DumpHistory(RecalledHistory):
    """The calls of a dump. `groups` are those of the rank."""

    def __init__(
        self,
        trace: Trace,
        rank: int,
        groups: Mapping[GroupKey, TracedGroup],
        partings: Mapping[int, Parting | None],
    ) -> None:
        self._trace = trace
        self._rank = rank
        self._groups = groups
        self._partings = partings
        self._entries = trace.dumps[rank].entries
        self._odd: dict[tuple[GroupKey, tuple[int, int]], int | None] = {}

    # -- where an entry is -------------------------------------------------------------------------

    @cached_property
    def _keys(self) -> Mapping[tuple[int, GroupName], GroupKey]:
        """By the number that the process gave a group, and its name."""
        found = {}
        for key, group in self._groups.items():
            calls = group.calls.get(self._rank)
            for entry in calls.entries[:1] if calls is not None else ():
                found[entry.pg_id, entry.group] = key
        return found

    @cached_property
    def _ends(self) -> Mapping[int, tuple[GroupKey, tuple[int, int]]]:
        """Returns by the identity of each message its group, source and destination."""
        found: dict[int, tuple[GroupKey, tuple[int, int]]] = {}
        for key, group in self._groups.items():
            for ends, channel in group.channels.items():
                if self._rank in ends and ends[0] != ends[1]:
                    mine = channel.sends if self._rank == ends[0] else channel.receives
                    found.update((id(entry), (key, ends)) for entry in mine)
        return found

    def place(self, entry: Entry) -> _Place | None:
        """Returns where a message is counted; None for all else."""
        known = self._ends.get(id(entry)) if entry.seq is None else None
        if known is None or entry.signature.op == COALESCED:
            return None
        key, (source, destination) = known
        return key, entry.signature.op, destination if self._rank == source else source

    def number(self, entry: Entry) -> int:
        """The place of this entry in the record."""
        at = entry.record_id - self._entries[0].record_id
        if 0 <= at < len(self._entries) and self._entries[at] is entry:
            return at
        return self._numbers[id(entry)]

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        return {id(entry): at for at, entry in enumerate(self._entries)}

    # -- messages ----------------------------------------------------------------------------------

    @cached_property
    def _messages(self) -> Mapping[int, int]:
        """The number of each message in its channel, by its identity."""
        counts: dict[_Place, int] = {}
        found = {}
        for entry in self._entries if self._ends else ():
            place = self.place(entry)
            if place is not None:
                if place not in counts:
                    counts[place] = self._before(*self._ends[id(entry)])
                found[id(entry)] = counts[place]
                counts[place] += 1
        return found

    def _before(self, key: GroupKey, ends: tuple[int, int]) -> int:
        """Counts the messages of the channel that went before those on record of this end: where a
        record has lost its beginning, as many as make the complete ones of both ends equally
        many."""
        dumps = self._trace.dumps
        if all(rank not in dumps or dumps[rank].whole for rank in ends):
            return 0
        channel = self._groups[key].channels[ends]
        sent, received = (
            sum(entry.done for entry in side) for side in (channel.sends, channel.receives)
        )
        return max(sent, received) - (sent if self._rank == ends[0] else received)

    def channels(self, front: Entry | None) -> Iterator[Channel]:
        """Yields those in which it has messages; `front` is its oldest call that pends."""
        edge = None if front is None else launch_of(front)
        last: dict[_Place, Entry] = {}
        begun: dict[_Place, int] = {}
        behind = False
        for entry in self._entries:
            behind = behind or front is entry
            place = self.place(entry)
            if place is not None:
                last[place] = entry
                if not behind or entry.done or launch_of(entry) == edge:
                    begun[place] = self._messages[id(entry)] + 1
        for place, entry in last.items():
            seq, at = self._messages[id(entry)], self.number(entry)
            yield Channel(*place, 0, seq + 1, self._chain(entry), at, begun.get(place, 0))
        for key, group in self._groups.items():
            if any(one.from_any and to == self._rank for (_, to), one in group.channels.items()):
                yield Channel(key, "recv", ANY_SOURCE, 0, 1, 0, None)

    def _chain(self, entry: Entry) -> int:
        """Returns the chain of a channel after this message: equal at both ends as far as they
        fit."""
        at = self._ends[id(entry)]
        if at not in self._odd:
            self._odd[at] = odd_message(self._trace, self._groups[at[0]], at[1])
        odd = self._odd[at]
        return 0 if odd is None or self._messages[id(entry)] < odd else 1 + (self._rank == at[1][0])

    # -- calls -------------------------------------------------------------------------------------

    @cached_property
    def _is_timed(self) -> bool:
        """Whether its recorder tells when a call begins: in a job all do or none. A dump without
        complete calls need not show it."""
        own = self._rank in self._trace.active_only or any(one.started for one in self._entries)
        return own and self._trace.is_timed

    def call(self, number: int) -> Call | None:
        """The call; behind the last one come the parts of one that is not issued to its end."""
        entries = self._entries
        if number >= len(entries):
            parts = self._trace.dumps[self._rank].unfinished
            return (
                self._part(number, parts[number - len(entries)])
                if number < len(entries) + len(parts)
                else None
            )
        if number < 0:
            return None
        entry = entries[number]
        signature, seq, chain = entry.signature, entry.seq, 0
        if seq is None:
            place = self.place(entry)
            if place is None:
                return None
            key = place[0]
            signature, seq = replace(signature, peer=place[2]), self._messages[id(entry)]
            chain = self._chain(entry)
        else:
            key = self._keys[entry.pg_id, entry.group]
            part = self._partings[id(self._groups[key])]
            if part is not None and part.seq == seq:
                signature = part.made.get(self._rank, signature)
        state = CallState.FAILED if entry.timed_out else CallState.STARTED
        if self._is_timed and not entry.started:
            state = CallState.ISSUED
        return Call(
            number=number,
            group=key,
            seq=max(seq, 0),  # torch counts from 1
            signature=signature,
            site=entry.site,
            thread=THREAD,
            state=CallState.COMPLETED if entry.done else state,
            chain=chain,
            issued_ns=entry.created_ns,
            started_ns=entry.created_ns if entry.started or not self._trace.is_timed else 0,
            completed_ns=(entry.completed_ns or max(entry.created_ns, 1)) if entry.done else 0,
        )

    def _part(self, number: int, entry: Entry) -> Call | None:
        for key, group in self._groups.items():
            if group.key[:2] == entry.group:
                state, seq = CallState.ISSUED, entry.seq or 0
                return Call(number, key, seq, entry.signature, entry.site, THREAD, state)
        return None

    def numbers(self, group: GroupKey | None) -> Sequence[int]:
        """All calls, without what ends coalesced ones, of which the parts are there."""
        del group
        return [at for at, one in enumerate(self._entries) if one.signature.op != COALESCED]

    def number_of(self, place: Hashable, seq: int) -> int | None:
        """The number of a collective, where ranks differ of those that are compared, or of a
        message. Where records have lost the first messages, of those before one that is odd nobody
        knows which they are."""
        known = self._groups.get(place)  # type: ignore[call-overload]
        if known is not None:
            calls, part = known.calls.get(self._rank), self._partings[id(known)]
            if calls is None or seq not in calls.by_seq:
                return None
            if part is not None and part.seq == seq and self._rank not in part.made:
                return None
            return self.number(calls.by_seq[seq][0])
        for entry in self._entries if self._ends else ():
            where = self.place(entry)
            if where is not None and (*where, 0) == place and self._messages[id(entry)] == seq:
                whole = self._trace.is_whole(self._rank, where[2])
                return self.number(entry) if whole or self._chain(entry) else None
        return None

    def chains_after(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        """The first is told by where the group's ranks part, as far as the rank has a record."""
        known = self._groups.get(group)
        calls = known.calls.get(self._rank) if known is not None else None
        if known is None or (calls is not None and 0 < issued < min(calls.by_seq, default=0)):
            return None
        part = self._partings[id(known)]
        return (part.chain(self._rank, issued) if part is not None else 0, 0, 0)

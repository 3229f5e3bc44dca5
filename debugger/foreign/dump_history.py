"""The calls of one rank's dump, each made when it is asked for; and where the calls of ranks part:
the first of a group, or of a channel, that do not fit. A recorder keeps no hash chains; what those
would tell is told by this."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..record.layout import CallState
from ..record.signature import ANY_SOURCE, MASK, Signature, agreement_key
from ..record.snapshot import Call, Channel, GroupKey, RecalledHistory
from .flight_recorder import COALESCED, Entry, GroupName, launch_of
from .trace import Trace, TracedGroup


@dataclass(frozen=True)
class Parting:
    """The first sequence number of a group at which ranks have made calls that do not fit, what
    each of them gave there, and the number of its party, counted from 1."""

    seq: int
    made: Mapping[int, Signature]
    parties: Mapping[int, int]

    def chain(self, rank: int, issued: int) -> int:
        """Equal for ranks that are known to have called the same so far."""
        return 0 if issued <= self.seq else self.parties.get(rank, MASK)


def parting(trace: Trace, group: TracedGroup) -> Parting | None:
    """The first call of the group in which its ranks differ."""
    if len({calls.likeness for calls in group.calls.values() if calls.entries}) < 2:
        return None
    made: dict[int, dict[int, Sequence[Entry]]] = {}
    for rank, calls in group.calls.items():
        for seq, entries in calls.by_seq.items():
            made.setdefault(seq, {})[rank] = entries
    cut = {
        rank: id(dump.entries[0])
        for rank in group.calls
        if (dump := trace.dumps[rank]).entries and not dump.whole
    }
    for seq in sorted(made):
        signatures = _comparable(made[seq], cut)
        different = {id(one): one for one in signatures.values()}
        if len(different) < 2:
            continue  # the same object is the same call
        if group.key[2] and all(_is_past(made[seq][rank][0]) for rank in signatures):
            continue  # of worlds that were made again nobody says who is in which
        keys = {at: agreement_key(one) for at, one in different.items()}
        numbers: dict[object, int] = {}
        parties = {
            rank: numbers.setdefault(keys[id(one)], 1 + len(numbers))
            for rank, one in signatures.items()
        }
        if len(numbers) > 1:
            return Parting(seq, signatures, parties)
    return None


def _is_past(entry: Entry) -> bool:
    """Whether it is over, in a record of gloo's, which does not tell the members of groups."""
    return entry.done and not entry.tells_completion


def _comparable(
    made: Mapping[int, Sequence[Entry]], cut: Mapping[int, int]
) -> dict[int, Signature]:
    """Returns what the ranks must agree on. A coalesced call is compared by its ops alone, and a
    rank that has issued no more than some of its parts (its host stands between them) is not
    compared, nor is one whose record begins amid the parts (`cut`: the `id` of its first entry)."""
    coalesced = any(len(many) > 1 or many[0].signature.op == COALESCED for many in made.values())
    if not coalesced:
        return {rank: entries[0].signature for rank, entries in made.items()}
    ops = {
        rank: [entry.signature.op for entry in entries]
        for rank, entries in made.items()
        if id(entries[0]) != cut.get(rank)
    }
    whole = {rank for rank, mine in ops.items() if mine[-1] == COALESCED}
    parts = {op for rank in whole for op in ops[rank]}
    return {
        rank: Signature(op=" + ".join(dict.fromkeys(op for op in mine if op != COALESCED)))
        for rank, mine in ops.items()
        if rank in whole or not parts.issuperset(mine)
    }


def odd_message(trace: Trace, group: TracedGroup, ends: tuple[int, int]) -> int | None:
    """The number of the first message of a channel whose two ends differ in size or dtype. Of
    records that have lost their beginning nothing but that both ranks stand in it tells that two
    ends are of one message: the first that pends on either side."""
    channel = group.channels[ends]
    if channel.from_any:
        return None
    if trace.is_whole(*ends):
        pairs = zip(channel.sends, channel.receives, strict=False)
        return next(
            (at for at, (sent, received) in enumerate(pairs) if not _fit(sent, received)), None
        )
    sides = (channel.sends, channel.receives)
    pending = [one for side in sides for one in [entry for entry in side if not entry.done][:1]]
    fronts = [front for rank in ends if (front := trace.first_pending(rank)) is not None]
    if list(map(launch_of, pending)) != list(map(launch_of, fronts)) or len(pending) < len(sides):
        return None
    done = max(sum(entry.done for entry in side) for side in sides)
    return None if _fit(*pending) else done


def _fit(send: Entry, receive: Entry) -> bool:
    sent, received = send.signature, receive.signature
    if sent.tensors == received.tensors or not sent.tensors or not received.tensors:
        return True
    return sum(sent.counts) == sum(received.counts) and sent.dtypes == received.dtypes


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

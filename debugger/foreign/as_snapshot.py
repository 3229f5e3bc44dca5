"""The dumps of a job as a snapshot: each rank as one of ours would be that stands where its dump
ends, so that the diagnosis judges them as it does any run.

A rank waits in its oldest call that is not complete. What it has issued behind that has not begun:
its device comes to it later. When a call ended is not on record: where it has, its end stands at
its beginning. There is no clock that says now.

The calls of one rank's dump, each made when it is asked for; and where the calls of ranks part:
the first of a group, or of a channel, that do not fit. A recorder keeps no hash chains; what those
would tell is told by this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..record.layout import Activity, CallState, GroupState
from ..record.lines import PackedLines
from ..record.signature import ANY_SOURCE, MASK, Signature, agreement_key
from ..record.snapshot import (
    Call,
    Channel,
    Group,
    GroupKey,
    Knows,
    Place,
    Process,
    Rank,
    RecalledHistory,
    Snapshot,
    Wait,
)
from ..record.writing.whole_records import write_whole
from .flight_recorder import COALESCED, Entry, GroupName, launch_of, libraries
from .trace import Trace, TracedGroup, is_symmetric

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
        self._lines = {id(group): lines_of(group) for group in trace.groups}
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
        lines = self._lines[id(group)].get(number)
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
            lines=lines if calls is not None and issued == calls.reached + 1 else None,
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
        if dump.damaged:  # what could not be read may be any call
            return max(known, _most(group))
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


def lines_of(group: TracedGroup) -> dict[int, PackedLines]:
    """Returns where the calls of each rank come from, as far back as all of them have theirs on
    record. Empty where calls of a rank are left out, or have no stacks."""
    made: dict[int, list[tuple[int, Place | None]]] = {}
    for rank, calls in group.calls.items():
        if not any(entry.place for entry in calls.entries):
            return {}
        rows = made[rank] = [(seq, many[-1].place) for seq, many in sorted(calls.by_seq.items())]
        if rows[-1][0] - rows[0][0] >= len(rows):
            return {}
    first = max((rows[0][0] for rows in made.values()), default=0)
    # Most ranks have made the very same calls: those are packed once.
    logs: dict[Hashable, PackedLines] = {}
    found = {}
    for rank, rows in made.items():
        del rows[: first - rows[0][0]]
        same = (len(rows), *(id(place) for _, place in rows))
        found[rank] = logs.setdefault(same, PackedLines(rows))
    return found


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

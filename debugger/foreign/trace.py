"""The dumps of all ranks as one trace: groups with their members, and who has made which call.
Which calls are complete is told where a dump does not say so, or says it late.

*Coalesced calls*, a batch of messages or several collectives in one launch: torch writes an entry
for each part as it is issued, and one named `coalesced` at the end, which alone says that all are
complete (`without_leftovers`).

*Calls that pend in gloo's record and nowhere else*: gloo marks a call as over a moment after it is.
In a dump that is written right then, as a rank does at its end, the last ones still pend. A call
which nobody ends before all are in it, and which another rank has put away, is over there. One that
has pended for longer is stuck: what the other rank has put away has failed (`without_lag`).

*torch's own count* of what a rank has completed of a group, `pg_status`, where a dump leaves
complete calls out (`completed`). The count is by the number that a process gave the group, and only
entries have that and the name; where there is no entry, the order in which groups are made tells.
Messages are counted in, as another number: a group in which the count and an entry differ, on any
rank, has none to be trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias

from ..record.ops import op_of
from .flight_recorder import COALESCED, Dump, Entry, GroupName, launch_of
from .limits import LAGS_NS

FEWEST_PAIRS = 3
ALL_BUT = 0.75
"""So many messages, and so great a part of them, must have both ends on record."""
NO_DESCRIPTION = ("", "undefined")
"""What torch has for the description of a group that was given none."""
Launch: TypeAlias = tuple[GroupName, int]
"""A collective launch as all ranks number it: its group, and its sequence number."""


def without_leftovers(dumps: Mapping[int, Dump]) -> dict[int, Dump]:
    """The dumps with what is left of coalesced calls that are complete marked as complete, and
    without the parts of one that its rank has not issued to the end (`Dump.unfinished`).

    A dump of active calls alone leaves out the last entry of such a call, the only one that says
    so, and keeps its parts. Where the host is between the parts and the last entry, the rank has
    done nothing since, and its dump is not one of active calls. Which groups make coalesced calls
    is seen from all ranks: of a single message one rank cannot tell.
    """
    using: set[GroupName] = set()
    ended: set[Launch] = set()
    for dump in dumps.values():
        if dump.plain:
            continue
        before: Entry | None = None
        for entry in dump.entries:
            several = before is not None and launch_of(before) == launch_of(entry)
            if entry.signature.op == COALESCED or several:
                using.add(entry.group)
                if entry.signature.op == COALESCED and entry.seq is not None:
                    ended.add((entry.group, entry.seq))
            before = entry
    using |= _of_complete_batches(dumps)
    if not using:
        return dict(dumps)
    mixing = _send_singly(dumps.values())
    return {
        rank: _without_the_unfinished(_settled(dump, using), ended, using - mixing)
        for rank, dump in dumps.items()
    }


def _of_complete_batches(dumps: Mapping[int, Dump]) -> set[GroupName]:
    """Groups of whose batches only the parts are left, since all of them are complete: in each dump
    of active calls a record is missing right behind every part, the batch's end, and the peers have
    the other ends as well, as many. (Of single messages that pend, the next one may follow at once,
    and a peer that does not come has none.)

    Groups of one description do the same: a pipeline of two stages has but one pair in each."""
    parts: dict[GroupName, Counter[tuple[str, int, int]]] = {}
    refuted: set[str] = set()
    for dump in dumps.values():
        if dump.plain or dump.tells_of_all:
            continue
        for at, entry in enumerate(dump.entries):
            if entry.seq is not None or entry.own is None or entry.peer is None:
                continue
            ways = parts.setdefault(entry.group, Counter())
            source, destination = entry.own, entry.peer
            if entry.signature.op != "send":
                source, destination = destination, source
            ways[entry.signature.op, source, destination] += 1
            behind = dump.entries[at + 1] if at + 1 < len(dump.entries) else None
            if behind is not None and behind.record_id == entry.record_id + 1:
                refuted.add(_alike(entry.group))
    alike: dict[str, list[GroupName]] = {}
    for group in parts:
        alike.setdefault(_alike(group), []).append(group)
    return {
        group
        for kind, groups in alike.items()
        if kind not in refuted and _paired([parts[group] for group in groups])
        for group in groups
    }


def _alike(group: GroupName) -> str:
    """Returns what the groups have in common that do the same: their description, where they have
    one."""
    name, desc = group
    return name if desc in NO_DESCRIPTION else desc


def _paired(groups: Iterable[Mapping[tuple[str, int, int], int]]) -> bool:
    """Whether nearly all messages have both their ends."""
    ends = [
        (ways.get(("send", *place), 0), ways.get(("recv", *place), 0))
        for ways in groups
        for place in {(source, destination) for _, source, destination in ways}
    ]
    both = sum(map(min, ends))
    return both >= FEWEST_PAIRS and both >= ALL_BUT * sum(map(max, ends))


def _settled(dump: Dump, using: Container[GroupName]) -> Dump:
    entries = dump.entries
    ends = {launch_of(entry) for entry in entries if entry.signature.op == COALESCED}
    last = launch_of(entries[-1]) if entries and any(entry.done for entry in entries) else None
    coalesced = Counter(map(launch_of, entries))
    found = [
        entry._replace(done=True)
        if entry.group in using
        and (entry.seq is None or coalesced[launch_of(entry)] > 1)
        and launch_of(entry) not in ends
        and launch_of(entry) != last
        else entry
        for entry in entries
    ]
    return replace(dump, entries=found)


def _send_singly(dumps: Iterable[Dump]) -> set[GroupName]:
    """Groups in which a message has been sent by itself, too: there nobody can tell whether the
    last one is the first part of a batch."""
    found: set[GroupName] = set()
    for dump in dumps:
        entries = dump.entries
        if not dump.tells_of_all or not entries:
            continue
        ends = {launch_of(entry) for entry in entries if entry.signature.op == COALESCED}
        at_the_edge = (launch_of(entries[0]), launch_of(entries[-1]))
        found.update(
            entry.group
            for entry in entries
            if entry.seq is None
            and launch_of(entry) not in ends
            and launch_of(entry) not in at_the_edge
        )
    return found


def _without_the_unfinished(
    dump: Dump, ended: Container[Launch], only_batches: Container[GroupName]
) -> Dump:
    """Without the parts at the end of the record that have no end of their own: of collectives,
    where another rank has it; of messages, where the group knows batches alone."""
    entries = dump.entries
    if not entries or not dump.tells_of_all or entries[-1].signature.op == COALESCED:
        return dump
    last = entries[-1]
    seq = last.seq
    if last.group not in only_batches if seq is None else (last.group, seq) not in ended:
        return dump
    kept = [entry for entry in entries if launch_of(entry) != launch_of(last)]
    return replace(dump, entries=kept, unfinished=entries[len(kept) :])


def is_symmetric(entry: Entry) -> bool:
    """Whether nobody is over with such a call before all are in it."""
    return entry.seq is None or op_of(entry.signature.op).certain == "all"


def without_lag(
    dumps: Mapping[int, Dump], lives: Mapping[int, Mapping[Own, Key]]
) -> Mapping[int, Dump]:
    """The dumps with such calls marked as over."""

    def call_of(rank: int, entry: Entry) -> tuple[Key, int | None]:
        return lives[rank][entry.pg_id, entry.group], entry.seq

    pend = {
        id(entry): call_of(rank, entry)
        for rank, dump in dumps.items()
        for entry in dump.entries
        if _may_lag(dump, entry)
    }
    over = {
        call_of(rank, entry)
        for rank, dump in dumps.items()
        for entry in (dump.entries if pend else ())
        if entry.done and entry.seq is not None and is_symmetric(entry)
    }
    if over.isdisjoint(pend.values()):
        return dumps

    def told(entry: Entry) -> Entry:
        return entry._replace(done=True) if pend.get(id(entry)) in over else entry

    return {
        rank: replace(dump, entries=list(map(told, dump.entries))) for rank, dump in dumps.items()
    }


def _may_lag(dump: Dump, entry: Entry) -> bool:
    """Whether it pends, in a record that was written a moment after it was made."""
    if entry.done or entry.seq is None or entry.tells_completion:
        return False
    return 0 < dump.written_ns < entry.created_ns + LAGS_NS


Key: TypeAlias = tuple[str, str, int]
"""torch's name of a group, its description, and which life of that name it is: a job that
initialises again begins again at sequence number 0."""
Own: TypeAlias = tuple[int, GroupName]
"""A group by the number that one process gave it, and its name."""
DEFAULT = "default_pg"


def completed(
    dumps: Mapping[int, Dump],
    active_only: Container[int],
    lives: Mapping[int, Mapping[Own, Key]],
) -> Iterator[tuple[Key, int, int]]:
    """For groups in which somebody waits: a rank that does not, and the last collective of the
    group that it has completed, counted from 0."""
    numbers = {
        rank: _numbers(dump)
        for rank, dump in dumps.items()
        if rank in active_only and dump.enqueued
    }
    if not numbers:
        return
    waiting: dict[Key, dict[int, list[int]]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if not entry.done:
                key = lives[rank][entry.pg_id, entry.group]
                seq = -1 if entry.seq is None else entry.seq
                waiting.setdefault(key, {}).setdefault(rank, []).append(seq)
    for key, ranks in waiting.items():
        newest = max(max(many) for many in ranks.values())
        if key[2] or not all(
            min(many) >= 0 and _enqueued(dumps[rank], numbers.get(rank, {}), key) == max(many)
            for rank, many in ranks.items()
        ):
            continue
        for rank, known in numbers.items():
            number = known.get(key[:2])
            if rank in ranks or number is None:
                continue
            seq = dumps[rank].completed.get(number, -1)
            if 0 <= seq <= newest and seq == dumps[rank].enqueued.get(number):
                yield key, rank, seq


def has_lost(dump: Dump) -> bool:
    """Whether a call pends that is older than all of its group on record, by the counts of a group
    in which no messages are on record and whose newest call is the one that was counted last. A
    dump of active calls alone has all that pend: a full ring in which nothing is complete looks
    like one, and is told from it by this."""
    if dump.whole:
        return False
    seqs: dict[int, list[int]] = {}
    for entry in dump.entries:
        if entry.tells_completion:
            seqs.setdefault(entry.pg_id, []).append(-1 if entry.seq is None else entry.seq)
    return any(
        0 <= dump.completed.get(number, -1) < min(many) - 1 and max(many) == dump.enqueued[number]
        for number, many in seqs.items()
        if number in dump.enqueued and number in dump.completed
    )


def _enqueued(dump: Dump, known: Mapping[GroupName, int], key: Key) -> int | None:
    number = known.get(key[:2])
    return None if number is None else dump.enqueued.get(number)


def _numbers(dump: Dump) -> dict[GroupName, int]:
    """By the names of groups the number that the process gave each: as entries have it; 0 for the
    default group, which is the first one; and, where all are counted and each is named by a number,
    by their order."""
    found = {entry.group: entry.pg_id for entry in dump.entries}
    default = next((name for name in dump.groups if name[1] == DEFAULT), None)
    if default is not None and 0 not in found.values():
        found.setdefault(default, 0)
    names = [name for name in dump.groups if name[0].isdecimal()]
    if len(names) == len(dump.groups) == len(dump.enqueued):
        ordered = sorted(names, key=lambda name: int(name[0]))
        by_order = dict(zip(ordered, sorted(dump.enqueued), strict=True))
        if all(by_order.get(name, number) == number for name, number in found.items()):
            found |= by_order
    return found


_SEQ = attrgetter("seq")
"""Of a collective."""


@dataclass
class CallEvents:
    """The collectives of one rank in one group. `counted` is the sequence number of the newest one
    that is complete by the dump's own count, `pg_status` (-1: none).

    That count is of use only where complete calls are left out (`counts`): elsewhere the newest
    entry of the group is the count. What a job of many ranks needs of few of them is made when it
    is asked for.
    """

    entries: list[Entry] = field(default_factory=list)
    counted: int = -1

    @cached_property
    def by_seq(self) -> Mapping[int, Sequence[Entry]]:
        """The calls of each sequence number, in the order of the record."""
        found: dict[int, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(_SEQ(entry), []).append(entry)
        return found

    @cached_property
    def first_pending(self) -> Entry | None:
        """The oldest one that is not complete."""
        return min([one for one in self.entries if not one.done], key=_SEQ, default=None)

    @cached_property
    def reached(self) -> int:
        """The last sequence number that the rank has surely issued (-1: none is on record)."""
        newest: int = max([self.counted, *map(_SEQ, self.entries)])
        return newest

    @property
    def likeness(self) -> Hashable:
        """Equal of ranks that have made the very same calls, each at the same number."""
        return tuple([(entry.seq, id(entry.signature)) for entry in self.entries])


@dataclass(slots=True)
class MessageTrack:
    """The messages from one rank to another within a group, as each end has them on record.
    `from_any`: the receiver has taken messages from whoever sends, and nobody knows whose they
    were."""

    sends: list[Entry] = field(default_factory=list)
    receives: list[Entry] = field(default_factory=list)
    from_any: bool = False


@dataclass(frozen=True)
class TracedGroup:
    """A group of the trace. `ranks` are global ranks in group order. `calls` has who has dumps;
    `channels` are by global ranks, (source, destination). `derived`: no dump says who its members
    are, and `ranks` are those who have called in it."""

    key: Key
    ranks: tuple[int, ...]
    calls: Mapping[int, CallEvents]
    channels: dict[tuple[int, int], MessageTrack] = field(default_factory=dict)
    derived: bool = False

    @cached_property
    def members(self) -> frozenset[int]:
        """The ranks, to look one up."""
        return frozenset(self.ranks)


@dataclass(frozen=True)
class Trace:
    """All that the dumps tell. `active_only` are the ranks whose dump leaves complete calls out."""

    dumps: Mapping[int, Dump]
    groups: Sequence[TracedGroup]
    world_size: int
    active_only: Container[int] = ()

    @cached_property
    def missing(self) -> frozenset[int]:
        """Ranks that must have been there and have no dump."""
        named = {rank for group in self.groups for rank in group.ranks}
        return frozenset(({*range(self.world_size)} | named) - self.dumps.keys())

    @cached_property
    def _pending(self) -> Mapping[int, Entry]:
        found: dict[int, Entry] = {}
        for rank, dump in self.dumps.items():
            entry = next((entry for entry in dump.entries if not entry.done), None)
            if entry is not None:
                found[rank] = entry
        return found

    def first_pending(self, rank: int) -> Entry | None:
        """The oldest call of the rank, messages too, that is not complete."""
        return self._pending.get(rank)

    @cached_property
    def lost(self) -> frozenset[int]:
        """Ranks that wait in a call which their record has lost: newer ones have overwritten it,
        and torch's count says that it is not complete. What pends on record is behind it."""
        return frozenset(rank for rank, dump in self.dumps.items() if has_lost(dump))

    @cached_property
    def is_timed(self) -> bool:
        """Whether the recorders tell when calls begin: those of a job all do or none."""
        return any(entry.started for dump in self.dumps.values() for entry in dump.entries)

    def is_whole(self, *ranks: int) -> bool:
        """Whether the records of all these go back to the first call: then the messages between
        them are known by their numbers."""
        return all(rank in self.dumps and self.dumps[rank].whole for rank in ranks)


def traced(dumps: Mapping[int, Dump]) -> Trace:
    """The trace of one job."""
    active_only = {rank for rank, dump in dumps.items() if dump.active_only and not has_lost(dump)}
    dumps = without_leftovers(dumps)
    lives = _lives(dumps)
    dumps = without_lag(dumps, lives)
    calls: dict[Key, dict[int, CallEvents]] = {}
    # Lists of members are long and few objects: hashed and searched once each, not once a rank.
    known: dict[int, frozenset[int]] = {}
    said: dict[Key, dict[int, tuple[int, ...]]] = {}
    for rank, dump in dumps.items():
        mine: dict[Own, list[Entry]] = {}
        for entry in dump.entries:
            if entry.seq is not None:
                mine.setdefault((entry.pg_id, entry.group), []).append(entry)
        for own, key in lives[rank].items():
            of_group = calls.setdefault(key, {})
            if own in mine:
                of_group[rank] = CallEvents(mine[own])
        keys = set(lives[rank].values())
        called = {key[:2] for key in keys}
        keys |= {(*name, 0) for name in dump.groups if name not in called}
        for key in keys:
            members = dump.groups.get(key[:2])
            if members is None:
                continue
            if id(members) not in known:
                known[id(members)] = frozenset(members)
            if rank in known[id(members)]:
                said.setdefault(key, {})[id(members)] = members
    for key, rank, seq in completed(dumps, active_only, lives):
        calls.setdefault(key, {}).setdefault(rank, CallEvents()).counted = seq
    told = {key: set(many.values()) for key, many in said.items()}
    world_size = 1 + max(
        [*dumps, *(max(ranks) for many in told.values() for ranks in many)], default=-1
    )
    groups = []
    # For each group in which messages were sent: the rank's number in it by its global one,
    # as the names of its messages tell it.
    numbered: dict[Key, dict[int, int]] = {}
    for one, its in dumps.items():
        for each in () if its.plain else its.entries:
            if each.seq is None and each.own is not None:
                numbered.setdefault(lives[one][each.pg_id, each.group], {})[one] = each.own
    for key in sorted(calls.keys() | told.keys()):
        made, ends = calls.get(key, {}), numbered.get(key, {})
        listed = sorted(told.get(key, ()))
        derived = not listed and key[1] != DEFAULT
        for members in listed or [_derived(key, made, ends, world_size)]:
            inside = {rank: made[rank] for rank in members if rank in made}
            groups.append(TracedGroup(key, members, inside, derived=derived))
    _add_messages(dumps, lives, groups)
    return Trace(dumps, groups, world_size, active_only)


def _add_messages(
    dumps: Mapping[int, Dump],
    lives: Mapping[int, Mapping[Own, Key]],
    groups: Sequence[TracedGroup],
) -> None:
    """Each message into the channel that it went through: the record has ranks of the group."""
    by_key: dict[Key, list[TracedGroup]] = {}
    for group in groups:
        by_key.setdefault(group.key, []).append(group)
    from_any: set[tuple[Key, int]] = set()
    for rank, dump in dumps.items():
        for entry in () if dump.plain else dump.entries:
            if entry.seq is not None or entry.peer is None:
                continue
            key = lives[rank][entry.pg_id, entry.group]
            if entry.peer < 0:
                from_any.add((key, rank))
                continue
            for group in by_key.get(key, ()):
                if entry.peer < len(group.ranks) and rank in group.members:
                    peer = group.ranks[entry.peer]
                    if entry.signature.op == "send":
                        group.channels.setdefault((rank, peer), MessageTrack()).sends.append(entry)
                    else:
                        group.channels.setdefault((peer, rank), MessageTrack()).receives.append(
                            entry
                        )
                    break
    for group in groups:
        for (_, destination), channel in group.channels.items():
            channel.from_any = (group.key, destination) in from_any


def _lives(dumps: Mapping[int, Dump]) -> dict[int, dict[Own, Key]]:
    """For each rank the groups that it has called in. Where a job has initialised again, a record
    that has lost its beginning has the last lives of a name, any other the first ones."""
    numbers: dict[int, dict[GroupName, list[int]]] = {}
    most: dict[GroupName, int] = {}
    for rank, dump in dumps.items():
        seen: dict[GroupName, list[int]] = {}
        for number, name in sorted({(entry.pg_id, entry.group) for entry in dump.entries}):
            seen.setdefault(name, []).append(number)
        numbers[rank] = seen
        for name, many in seen.items():
            most[name] = max(most.get(name, 0), len(many))
    return {
        rank: {
            (number, name): (*name, index + (0 if dumps[rank].whole else most[name] - len(many)))
            for name, many in found.items()
            for index, number in enumerate(many)
        }
        for rank, found in numbers.items()
    }


def _derived(
    key: Key, made: Mapping[int, CallEvents], numbered: Mapping[int, int], world_size: int
) -> tuple[int, ...]:
    """Members of a group of which no dump tells them, as gloo's do not: all ranks for the default
    group, else who has called in it, in the order that their messages tell. Of two ranks the one
    that waits alone waits for the other: nobody waits in a group of his own."""
    callers = sorted(made.keys() | numbered.keys())
    alone = len(callers) == 1 and callers[0] in made and made[callers[0]].first_pending is not None
    if key[1] == DEFAULT or (alone and world_size == 2):
        return tuple(range(world_size))
    by_number = {number: rank for rank, number in numbered.items()}
    if len(by_number) == len(callers) and sorted(by_number) == list(range(len(callers))):
        return tuple(by_number[number] for number in range(len(callers)))
    return tuple(callers)

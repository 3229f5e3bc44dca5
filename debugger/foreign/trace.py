"""The dumps of all ranks as one trace: groups with their members, and who has made which call."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from .completion import DEFAULT, Key, Own, completed, has_lost, without_lag, without_leftovers
from .flight_recorder import Dump, Entry, GroupName

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

"""The dumps of all ranks as one trace: groups with their members, and who has made which call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..diagnosis.findings import GroupEvidence
from ..record.wording import printable
from .flight_recorder import Dump, Entry

Key = tuple[str, str, int]
"""torch's name of a group, its description, and how often the rank had made a group of that name
before: a job that initialises again begins again at sequence number 0."""
DEFAULT = "default_pg"


@dataclass(slots=True)
class Calls:
    """The collectives of one rank in one group. `enqueued` is the last one that it has issued by
    the recorder's own count, -1 for none, None where it does not say; `completed` likewise."""

    by_seq: dict[int, list[Entry]] = field(default_factory=dict)
    enqueued: int | None = None
    completed: int | None = None

    @property
    def first_pending(self) -> Entry | None:
        """The oldest call that is not complete."""
        for seq in sorted(self.by_seq):
            for entry in self.by_seq[seq]:
                if not entry.done:
                    return entry
        return None

    @property
    def reached(self) -> int | None:
        """The last sequence number that the rank has surely issued; None: nothing is known."""
        known = [self.enqueued] if self.enqueued is not None else []
        return max([*self.by_seq, *known], default=None)


@dataclass(frozen=True)
class TracedGroup:
    """A group of the trace. `ranks` are global ranks in group order. `calls` has who has dumps."""

    key: Key
    ranks: tuple[int, ...]
    calls: Mapping[int, Calls]

    def evidence(self) -> GroupEvidence:
        """The group as findings have it."""
        return GroupEvidence(printable(self.key[0], 120), printable(self.key[1], 120), self.ranks)


@dataclass(frozen=True)
class Trace:
    """All that the dumps tell. `missing` ranks have no dump. `tells_completion`: the library of the
    calls says of them when they were complete, as gloo does not."""

    dumps: Mapping[int, Dump]
    groups: Sequence[TracedGroup]
    world_size: int

    @property
    def missing(self) -> frozenset[int]:
        """Ranks that must have been there and have no dump."""
        named = {rank for group in self.groups for rank in group.ranks}
        return frozenset(({*range(self.world_size)} | named) - self.dumps.keys())

    def first_pending(self, rank: int) -> Entry | None:
        """The oldest call of the rank, messages too, that is not complete."""
        dump = self.dumps.get(rank)
        if dump is None:
            return None
        return next((entry for entry in dump.entries if not entry.done), None)


def traced(dumps: Mapping[int, Dump]) -> Trace:
    """The trace of one job."""
    calls: dict[Key, dict[int, Calls]] = {}
    told: dict[Key, set[tuple[int, ...]]] = {}
    for rank, dump in dumps.items():
        for pg_id, key in _keys(dump).items():
            mine = calls.setdefault(key, {}).setdefault(rank, Calls())
            mine.enqueued = dump.enqueued.get(pg_id)
            mine.completed = dump.completed.get(pg_id)
            for entry in dump.entries:
                if entry.pg_id == pg_id and entry.seq is not None:
                    mine.by_seq.setdefault(entry.seq, []).append(entry)
            members = dump.groups.get(key[:2])
            if members is not None and rank in members:
                told.setdefault(key, set()).add(members)
    for rank, dump in dumps.items():
        for name, members in dump.groups.items():
            if rank in members:
                told.setdefault((*name, 0), set()).add(members)
    world_size = 1 + max(
        [*dumps, *(rank for many in told.values() for ranks in many for rank in ranks)], default=-1
    )
    groups = []
    for key in sorted(calls.keys() | told.keys()):
        made = calls.get(key, {})
        for members in sorted(told.get(key, ())) or [_derived(key, made, world_size)]:
            inside = {rank: made[rank] for rank in members if rank in made}
            groups.append(TracedGroup(key, members, inside))
    return Trace(dumps, groups, world_size)


def _keys(dump: Dump) -> dict[int, Key]:
    """The groups of one dump by their local number."""
    seen: dict[tuple[str, str], list[int]] = {}
    for entry in dump.entries:
        numbers = seen.setdefault(entry.group, [])
        if entry.pg_id not in numbers:
            numbers.append(entry.pg_id)
    return {
        number: (*group, index)
        for group, numbers in seen.items()
        for index, number in enumerate(sorted(numbers))
    }


def _derived(key: Key, made: Mapping[int, Calls], world_size: int) -> tuple[int, ...]:
    """Members of a group of which no dump tells them, as gloo's do not: all ranks for the default
    group, else who has called in it."""
    return tuple(range(world_size)) if key[1] == DEFAULT else tuple(sorted(made))

"""Counts what a rank has completed of a group by torch's own count, where its dump leaves complete
calls out: `pg_status`.

The count is by the number that a process gave the group, and only entries have that and the name;
where there is no entry, the order in which groups are made tells. Messages are counted in, as
another number: a group in which the count and an entry differ, on any rank, has none to be trusted.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TypeAlias

from .flight_recorder import Dump, GroupName

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

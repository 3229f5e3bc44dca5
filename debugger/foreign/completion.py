"""Tells which calls are complete where a dump does not say so, or says it late.

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
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
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
    pend: dict[tuple[Key, int | None], set[int]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if _may_lag(dump, entry):
                at = (lives[rank][entry.pg_id, entry.group], entry.seq)
                pend.setdefault(at, set()).add(rank)
    if not pend:
        return dumps
    over: set[tuple[Key, int | None]] = {
        at
        for rank, dump in dumps.items()
        for entry in dump.entries
        if entry.done and entry.seq is not None and is_symmetric(entry)
        if (at := (lives[rank][entry.pg_id, entry.group], entry.seq)) in pend
    }
    lagging = {rank for at in over for rank in pend[at]}
    return {
        rank: dump
        if rank not in lagging
        else replace(
            dump,
            entries=[
                entry._replace(done=True)
                if _may_lag(dump, entry)
                and (lives[rank][entry.pg_id, entry.group], entry.seq) in over
                else entry
                for entry in dump.entries
            ],
        )
        for rank, dump in dumps.items()
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

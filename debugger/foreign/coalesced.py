"""Coalesced calls, a batch of messages or several collectives in one launch: what their records
leave out.

torch writes an entry for each part as it is issued, and one named `coalesced` at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from .flight_recorder import COALESCED, Dump, Entry, GroupName, launch_of

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

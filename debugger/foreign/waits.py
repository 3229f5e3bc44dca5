"""Who waits in which call for whom, as far as the dumps of a trace tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..record.wording import group_name, place, printable
from .flight_recorder import Entry, launch_of
from .trace import Trace, TracedGroup

MOST_FRONTS = 16
"""So many groups of a rank are looked at for calls in opposite order."""


@dataclass(frozen=True)
class Wait:
    """Ranks whose oldest pending call of a group, or of a channel, is the same one. `seq` is None
    of a message. `absent` members have no record of having issued it, or its other end. `beyond`
    have completed it."""

    group: TracedGroup
    seq: int | None
    waiting: Mapping[int, Entry]
    absent: tuple[int, ...]
    beyond: tuple[int, ...]

    @cached_property
    def since_ns(self) -> int:
        """Since when the first of them waits."""
        return min(entry.created_ns for entry in self.waiting.values())

    @property
    def place(self) -> str:
        """`#17 of group "default_pg"`."""
        name, desc, _ = self.group.key
        if self.seq is not None:
            return place(name, desc, self.seq)
        return f'in group "{group_name(name, desc)}"'

    def call(self, rank: int) -> str:
        """The call of a rank that waits, as it is printed."""
        entry = self.waiting[rank]
        if self.seq is None and entry.peer is not None:
            peer = self.group.ranks[entry.peer]
            way = f"{'to' if entry.signature.op == 'send' else 'from'} rank {peer}"
            return printable(f"{entry.signature} {way}")
        return printable(str(entry.signature))


def waits(trace: Trace) -> list[Wait]:
    """All of them, those of collectives by group and sequence number first."""
    return [*_collectives(trace), *_messages(trace)]


def _collectives(trace: Trace) -> Iterator[Wait]:
    places = _Places(trace)
    for number, group in enumerate(trace.groups):
        oldest: dict[int, dict[int, Entry]] = {}
        for rank, calls in group.calls.items():
            entry = calls.first_pending
            if entry is not None and entry.seq is not None:
                oldest.setdefault(entry.seq, {})[rank] = entry
        if not oldest:
            continue
        reached = {rank: calls.reached for rank, calls in group.calls.items()}
        for seq, waiting in sorted(oldest.items()):
            unseen = [rank for rank in group.ranks if reached.get(rank, -1) < seq]
            gone_on = places.gone_on(next(iter(waiting)), (number, seq), unseen)
            absent = tuple(rank for rank in unseen if rank not in gone_on)
            beyond = [rank for rank, calls in group.calls.items() if calls.completed(seq)]
            yield Wait(group, seq, waiting, absent, (*beyond, *sorted(gone_on)))


class _Places:
    """Where in each rank's record its pending collectives are."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._of: dict[int, dict[tuple[int, int], int]] = {}
        for number, group in enumerate(trace.groups):
            for rank, calls in group.calls.items():
                if calls.first_pending is None:
                    continue
                for seq, entries in calls.by_seq.items():
                    if not entries[0].done:
                        self._of.setdefault(rank, {})[number, seq] = entries[0].record_id

    def gone_on(self, rank: int, call: tuple[int, int], unseen: Iterable[int]) -> set[int]:
        """Who of `unseen` has made this call and completed it, though no record says so: a dump of
        active calls alone has forgotten it, and has one that `rank` made after it."""
        mine = self._of[rank]
        at = mine[call]
        return {
            other
            for other in unseen
            if other in self._trace.active_only
            and any(mine.get(one, -1) > at for one in self._of.get(other, ()))
        }


class End(NamedTuple):
    """One end of a message: number `at` of those that its rank has on record of its channel, and
    those that the peer has of the other ends. `whole`: both records go back to the first one, so
    that equal numbers are one message."""

    at: int
    entry: Entry
    peer: int
    others: Sequence[Entry]
    whole: bool
    from_any: bool

    @property
    def is_met(self) -> bool:
        """Whether the peer has issued what fits. Messages of a channel pair up in their order;
        where records have lost their beginning nobody knows the order, and the oldest message that
        pends on one side fits the oldest that does on the other."""
        if self.from_any:
            return True  # by a receive of which nobody knows whom it is for
        if self.whole:
            return self.at < len(self.others)
        return any(not entry.done for entry in self.others)

    @property
    def counterpart(self) -> Entry | None:
        """The other end, as far as it can be told which one it is."""
        if self.from_any:
            return None
        if self.whole:
            return self.others[self.at] if self.at < len(self.others) else None
        return next((entry for entry in self.others if not entry.done), None)

    @property
    def is_over(self) -> bool:
        """Whether the other end is complete, for certain."""
        known = self.whole and not self.from_any and self.at < len(self.others)
        return known and self.others[self.at].done


def ends(trace: Trace, group: TracedGroup) -> dict[int, list[End]]:
    """All ends of the group's messages on record, by rank, in their order within each channel."""
    found: dict[int, list[End]] = {}
    for (source, destination), channel in sorted(group.channels.items()):
        if source == destination:
            continue
        whole = all(one in trace.dumps and trace.dumps[one].whole for one in (source, destination))
        for rank, peer, mine, others in (
            (source, destination, channel.sends, channel.receives),
            (destination, source, channel.receives, channel.sends),
        ):
            found.setdefault(rank, []).extend(
                End(at, entry, peer, others, whole, channel.from_any)
                for at, entry in enumerate(mine)
            )
    return found


def _messages(trace: Trace) -> Iterator[Wait]:
    for group in trace.groups:
        for rank, mine in sorted(ends(trace, group).items()):
            first: dict[tuple[str, int], End] = {}
            launches: dict[tuple[int, bool, int], list[End]] = {}
            for end in mine:
                if not end.entry.done:
                    first.setdefault((end.entry.signature.op, end.peer), end)
                    launches.setdefault(launch_of(end.entry), []).append(end)
            for end in first.values():
                # A batch ends with the last of its messages: the others may be there long before.
                parts = launches[launch_of(end.entry)]
                is_late = all(part.is_over for part in parts)
                beyond = is_late and trace.first_pending(rank) is end.entry
                yield Wait(
                    group,
                    None,
                    {rank: end.entry},
                    absent=() if end.is_met else (end.peer,),
                    beyond=(end.peer,) if beyond else (),
                )


class _Front(NamedTuple):
    group: int
    seq: int | None


@dataclass(frozen=True)
class Opposed:
    """Two calls of two groups that ranks have issued in opposite order, and both pend. `orders` are
    the ranks that have issued the first one first, and those that have issued it last."""

    groups: tuple[TracedGroup, TracedGroup]
    calls: tuple[Entry, Entry]
    orders: tuple[tuple[int, ...], tuple[int, ...]]


def opposed(trace: Trace) -> Opposed | None:
    """The first such calls."""
    fronts: dict[int, list[tuple[int, Entry]]] = {}
    for number, group in enumerate(trace.groups):
        for rank, calls in group.calls.items():
            if calls.first_pending is not None:
                fronts.setdefault(rank, []).append((number, calls.first_pending))
    seen: dict[tuple[_Front, _Front], dict[int, tuple[Entry, Entry]]] = {}
    for rank, pending in sorted(fronts.items()):
        order = sorted(pending, key=lambda one: one[1].record_id)[:MOST_FRONTS]
        for at, (first, one) in enumerate(order):
            for second, two in order[at + 1 :]:
                pair = (_Front(first, one.seq), _Front(second, two.seq))
                seen.setdefault(pair, {})[rank] = (one, two)
    for pair, ranks in seen.items():
        others = seen.get((pair[1], pair[0]))
        if others:
            groups = (trace.groups[pair[0].group], trace.groups[pair[1].group])
            pends = next(iter(ranks.values()))
            return Opposed(groups, pends, (tuple(ranks), tuple(others)))
    return None

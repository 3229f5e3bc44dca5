"""Did a run end well only because messages were buffered? Asked when it has, of what is on record.

A blocking send is over before its receive is posted where the backend buffers it, as MPI's eager
does. Programs that rely on it end well until a tensor grows, or the backend is another one.

1. The messages are walked through once more, each rank up to a blocking send whose receive the
   other one has not come to (as if nothing was buffered), or a receive whose send it has not come
   to. No clock is asked, only in what order each rank made its calls. Who does not come to the end
   by that needs luck: a cycle would be a deadlock, a send that nobody receives an unmatched one.
2. What is no longer on record has met its other side, and so has what a receive from any source may
   have taken.
3. A cycle counts where the thread that waits is the one that would come to what is awaited.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...record.layout import RING
from ...record.snapshot import Call, Snapshot, Timing
from ...record.wording import by_device, call_text
from ..facts.blocking import Model, on_device
from ..facts.channels import Channels
from ..facts.evidence import chosen, of_call
from ..facts.world import World, exit_status
from ..findings import CallIs, Finding, group_evidence
from ..limits import MOST_READ, Limits

LUCK = "needs luck: it ended well only because small messages were buffered; else"
_PASSED, _NEVER = -1, sys.maxsize
"""Places of calls that are no longer on record, and of those that a rank has never made."""
_Rows = Mapping[int, Sequence[Timing]]
"""The messages of each rank, in the order in which it began them."""


class _Stuck(NamedTuple):
    """A rank has come to its message `at`, and waits for what `peer` does at `place`."""

    at: int
    peer: int
    place: int


_NOBODY = _Stuck(0, -1, _NEVER)


def lucky_sends(snapshot: Snapshot) -> list[Finding]:
    """Returns warnings about a run in which every rank has ended with status 0."""
    ranks = snapshot.ranks.values()
    if not snapshot.finished or any(exit_status(rank) != 0 for rank in ranks):
        return []
    world = World(snapshot, None, Limits())
    channels = Channels(world)
    rows = _messages(world, channels)
    return list(_findings(world, rows, _walk(rows, channels)))


def _messages(world: World, channels: Channels) -> _Rows:
    buffered = {
        key
        for rank in world.ranks.values()
        for key, group in rank.groups.items()
        for names in [by_device(group.backend.lower()).values()]
        if all(Model().room_bytes(one) > 0 and not on_device(one) for one in names)
    }
    ends = {end for key in channels.sends if key[0] in buffered for end in key[1:3]}
    rows = {}
    for number, rank in world.ranks.items():
        if number in ends and rank.history is not None:
            count = min(RING, MOST_READ // len(ends))
            made = rank.history.timings(range(max(0, rank.calls - count), rank.calls))
            rows[number] = [one for one in made if one.message and one.group in buffered]
    return rows


def _walk(rows: _Rows, channels: Channels) -> Mapping[int, _Stuck]:
    """Returns the ranks that do not come to the end."""
    places = {
        (number, one.group, one.message, one.seq): place
        for number, made in rows.items()
        for place, one in enumerate(made)
    }

    def awaited(number: int, one: Timing) -> tuple[int, int]:
        op, peer, tag = one.message or ("", -1, 0)
        sends = op == "send"
        key = (one.group, *((number, peer) if sends else (peer, number)), tag)
        if not one.blocks or peer not in rows or not channels.strict(key):
            return peer, _PASSED
        other = "recv" if sends else "send", number, tag
        count = channels.received(key) if sends else channels.sent(key)
        unknown = _PASSED if one.seq < count else _NEVER
        return peer, places.get((peer, one.group, other, one.seq), unknown)

    at = dict.fromkeys(rows, 0)
    stuck: dict[int, _Stuck] = {}
    waiting: dict[int, list[int]] = defaultdict(list)
    todo = list(rows)
    while todo:
        number = todo.pop()
        before = at[number]
        stuck.pop(number, None)
        while at[number] < len(rows[number]):
            peer, place = awaited(number, rows[number][at[number]])
            if place > at.get(peer, _NEVER):
                stuck[number] = _Stuck(at[number], peer, place)
                waiting[peer].append(number)
                break
            at[number] += 1
        todo += waiting.pop(number, ()) if at[number] > before else ()
    return stuck


def _findings(world: World, rows: _Rows, stuck: Mapping[int, _Stuck]) -> Iterator[Finding]:
    """Yields one for each cycle, and for each send that nobody receives."""

    def call_of(number: int, place: int) -> Call | None:
        history = world.ranks[number].history
        return history.call(rows[number][place].number) if history is not None else None

    def finding(
        kind: str, headline: str, waiting: Sequence[int], culprits: Sequence[int]
    ) -> Finding:
        lines = [
            f"rank {one} in {call_text(calls[one])} waits for rank {stuck[one].peer}"
            for one in waiting
        ]
        group = rows[waiting[0]][stuck[waiting[0]].at].group
        return Finding(
            kind=kind,
            message=f"{LUCK} {headline}: {'; '.join(lines[:6])}",
            culprits=tuple(culprits),
            victims=tuple(one for one in waiting if one not in culprits),
            severity="warning",
            proven=False,
            group=group_evidence(world.ranks[waiting[0]].groups[group]),
            ranks={
                one: of_call("called", calls[one], calls[one].site, CallIs.OBJECT)
                for one in chosen(waiting, ())
            },
            details=lines,
            headline=f"{LUCK} {headline}",
            observable_ns=max(rows[one][stuck[one].at].completed_ns for one in waiting),
        )

    own = {number: call_of(number, one.at) for number, one in stuck.items()}
    calls = {number: call for number, call in own.items() if call is not None}
    seen: set[int] = set()
    for number, one in sorted(stuck.items()):
        if one.place == _NEVER and number in calls:
            headline = f"rank {one.peer} never receives what rank {number} sends"
            yield finding("unmatched_p2p", headline, [number], [one.peer])
        way = [number]
        while way[-1] not in seen and stuck.get(way[-1], _NOBODY).place != _NEVER:
            seen.add(way[-1])
            way.append(stuck[way[-1]].peer)
        cycle = way[way.index(way[-1]) : -1]
        ends = [(own[stuck[one].peer], call_of(*stuck[one][1:])) for one in cycle]
        if cycle and all(mine and its and mine.thread == its.thread for mine, its in ends):
            yield finding("deadlock", "ranks wait for each other in a cycle", cycle, cycle)

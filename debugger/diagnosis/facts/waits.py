"""The wait-for graph: the ranks that can never act again, and the shortest cycle among them (plain
graph work); and `waits`, the graph of one snapshot for people to read.

Unlike a finding that graph proves nothing: it tells what the records say at this moment, ranks that
will go on in a millisecond included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...record.layout import Activity
from ...record.snapshot import CallSite, Snapshot
from ..limits import Limits
from .channels import Channels
from .evidence import doing
from .needs import Need, Needs
from .world import World

MOST_STARTS = 64
"""From so many ranks of a found cycle a shorter one is looked for."""


def stuck_ranks(waiting: Mapping[int, Sequence[Need]], gone: frozenset[int]) -> set[int]:
    """Returns the waiting ranks that no order of events can free.

    `waiting` gives each rank the needs of all its waits: it can act when one of them can be met.
    Every rank that is neither in `waiting` nor `gone` can act. Linear in the size of the needs.
    """
    members: dict[int, list[int]] = {}
    needed_by: dict[int, list[Need]] = {}
    left: dict[int, int] = {}
    distinct: dict[int, Need] = {}
    for rank, needs in waiting.items():
        for need in needs:
            key = id(need)
            members.setdefault(key, []).append(rank)
            distinct[key] = need
    ready: deque[int] = deque()
    for key, need in distinct.items():
        blocked = [rank for rank in need.ranks if rank in waiting or rank in gone]
        left[key] = len(blocked)
        if not blocked or (need.any_of and len(blocked) < len(need.ranks)):
            ready.append(key)
            continue
        for rank in blocked:
            needed_by.setdefault(rank, []).append(need)
    stuck = set(waiting)
    met: set[int] = set()
    while ready:
        key = ready.popleft()
        if key in met:
            continue
        met.add(key)
        for rank in members[key]:
            if rank not in stuck:
                continue
            stuck.discard(rank)
            for need in needed_by.get(rank, ()):
                left[id(need)] -= 1
                if need.any_of or left[id(need)] == 0:
                    ready.append(id(need))
    return stuck


def find_cycle(waiting: Mapping[int, Sequence[Need]], stuck: set[int]) -> list[int] | None:
    """A shortest cycle of stuck ranks that wait for each other; None if they only wait for others.

    Starts with its lowest rank; each waits for the next, and the last for the first.
    """
    core = _with_a_way_on(waiting, stuck)
    if not core:
        return None
    walk: dict[int, int] = {}
    rank = min(core)
    while rank not in walk:
        walk[rank] = len(walk)
        rank = min(min(found) for need in waiting[rank] if (found := need.ranks & core))
    order = list(walk)[walk[rank] :]
    best = order
    for start in order[:MOST_STARTS]:
        if len(best) <= 2:
            break
        shorter = _shortest_through(waiting, core, start)
        if shorter and len(shorter) < len(best):
            best = shorter
    at = best.index(min(best))
    return best[at:] + best[:at]


def _with_a_way_on(waiting: Mapping[int, Sequence[Need]], stuck: set[int]) -> set[int]:
    """The stuck ranks from which one can go on and on: from each a cycle can be reached."""
    core = set(stuck)
    while True:
        alive: dict[int, bool] = {}
        for rank in core:
            for need in waiting[rank]:
                if id(need) not in alive:
                    alive[id(need)] = not need.ranks.isdisjoint(core)
        out = {rank for rank in core if not any(alive[id(need)] for need in waiting[rank])}
        if not out:
            return core
        core -= out


def _shortest_through(
    waiting: Mapping[int, Sequence[Need]], core: set[int], start: int
) -> list[int] | None:
    before: dict[int, int] = {}
    seen: set[int] = set()
    queue = deque([start])
    while queue:
        rank = queue.popleft()
        for need in waiting[rank]:
            if id(need) in seen:
                continue
            seen.add(id(need))
            if start in need.ranks and rank != start:
                path = [rank]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            for other in sorted(need.ranks & core):
                if other not in before and other != start:
                    before[other] = rank
                    queue.append(other)
    return None


def reaching(waiting: Mapping[int, Sequence[Need]], stuck: set[int], goal: set[int]) -> set[int]:
    """The stuck ranks that wait, directly or through others, for one of `goal`; `goal` included."""
    found = set(goal)
    grown = True
    while grown:
        grown = False
        hits: dict[int, bool] = {}
        for rank in stuck - found:
            for need in waiting[rank]:
                if id(need) not in hits:
                    hits[id(need)] = not need.ranks.isdisjoint(found)
                if hits[id(need)]:
                    found.add(rank)
                    grown = True
                    break
    return found


@dataclass(frozen=True, slots=True)
class RankWait:
    """A wait of one thread. `for_ranks` must all come (with `any_of`: one of them); empty: it may
    end by itself, or the records do not say. `what` is `in all_reduce(sum, float32[8]) #3 of group
    "a"`."""

    rank: int
    what: str
    since_ns: int
    site: CallSite | None
    activity: Activity
    for_ranks: frozenset[int] = frozenset()
    any_of: bool = False


@dataclass(frozen=True, slots=True)
class Waits:
    """`rows` by rank. `awaited`: for each rank that others surely wait for, since when (Unix
    time in ns). `cycle`: the shortest one, each rank waits for the next, the last for the
    first."""

    rows: Mapping[int, tuple[RankWait, ...]] = field(default_factory=dict)
    awaited: Mapping[int, int] = field(default_factory=dict)
    cycle: tuple[int, ...] = ()


def waits(snapshot: Snapshot, limits: Limits | None = None) -> Waits:
    """The wait-for graph of this snapshot. Linear in the number of ranks and distinct needs."""
    world = World(snapshot, None, limits or Limits())
    needs = Needs(world, Channels(world))
    rows: dict[int, tuple[RankWait, ...]] = {}
    waiting: dict[int, list[Need]] = {}
    since: dict[int, tuple[Need, int]] = {}
    for rank in world.ranks:
        pending = world.pending(rank)
        if not pending:
            continue
        found = []
        for one in pending:
            need = needs.of(one)
            if need is not None:
                known = since.get(id(need), (need, one.wait.since_ns))[1]
                since[id(need)] = (need, min(known, one.wait.since_ns))
            found.append(
                RankWait(
                    rank=rank,
                    what=doing(world, one),
                    since_ns=one.wait.since_ns,
                    site=one.site,
                    activity=one.wait.activity,
                    for_ranks=need.ranks if need else frozenset(),
                    any_of=bool(need and need.any_of),
                )
            )
        rows[rank] = tuple(found)
        every = needs.of_all(rank)
        if every is not None and world.ranks[rank].free_threads <= 0:
            waiting[rank] = every
    awaited: dict[int, int] = {}
    for need, since_ns in since.values():
        if not need.any_of:
            for rank in need.ranks:
                awaited[rank] = min(since_ns, awaited.get(rank, since_ns))
    gone = frozenset(rank for rank in world.ranks if world.ended(rank))
    stuck = stuck_ranks(waiting, gone)
    return Waits(rows, awaited, tuple(find_cycle(waiting, stuck) or ()))

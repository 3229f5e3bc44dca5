"""The wait-for graph of one snapshot, for people to read, shows who waits for whom, and in what.

Pure, as all of the diagnosis. Unlike a finding this proves nothing: it tells what the records say
at this moment, ranks that will go on in a millisecond included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...record.layout import Activity
from ...record.snapshot import CallSite, Snapshot
from ..limits import Limits
from .channels import Channels
from .cycles import find_cycle, stuck_ranks
from .evidence import doing
from .needs import Need, Needs
from .world import World


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
    return Waits(rows, awaited, _cycle(world, waiting))


def _cycle(world: World, waiting: Mapping[int, list[Need]]) -> tuple[int, ...]:
    gone = frozenset(rank for rank in world.ranks if world.ended(rank))
    stuck = stuck_ranks(waiting, gone)
    return tuple(find_cycle(waiting, stuck) or ()) if stuck else ()

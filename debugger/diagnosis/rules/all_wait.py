"""Two deadlocks of a record that has no clock (`Knows.clock`).

*Opposed order*: calls of two groups that ranks have issued in opposite order. Each device ends the
one that it was given first, and neither group has all its ranks in one call. All ranks have issued
both calls, so that nobody waits for a call that is still to come.

*All wait*: everybody waits, and some alone in groups of which the record does not say who else is
in them (`Group.members_known`): each of those waits for one of the others, and whoever that is,
following who waits for whom ends in a cycle. The culprits are the ranks without which there is
none; where there are none of these, all.
"""

from __future__ import annotations

from itertools import combinations

from ...record.snapshot import Call
from ...record.wording import call_text, numbered, ranks_text
from ..facts.evidence import chosen, standing
from ..facts.needs import Need, Needs
from ..facts.waits import find_cycle
from ..facts.world import Pending, World
from ..findings import Finding, group_evidence
from ..limits import Candidate

AMONG = "suspected: all ranks wait, and some of them for each other"
MOST_AMONG = 64
MOST_STEPS = 4


def all_wait(world: World, needs: Needs) -> list[Candidate]:
    """At most one finding."""
    fronts = {rank: rows[0] for rank in world.ranks if (rows := world.pending(rank))}
    if not world.size == len(world.ranks) == len(fronts) <= MOST_AMONG or world.knows.completion:
        return []
    waiting: dict[int, list[Need]] = {}
    alone = {rank for rank, front in fronts.items() if _is_alone(world, front)}
    for rank, front in fronts.items():
        need = needs.of(front)
        if rank in alone:
            need = Need(frozenset(fronts.keys() - {rank}), any_of=True)
        if need is None:
            return []
        waiting[rank] = [need]
    if not alone or len(fronts) < 2:
        return []
    culprits = [
        rank for rank in sorted(fronts) if find_cycle(waiting, waiting.keys() - {rank}) is None
    ]
    return [Candidate(_finding(world, fronts, culprits or sorted(fronts), alone))]


def _is_alone(world: World, front: Pending) -> bool:
    """A call of a group of one is never waited in."""
    view = world.view(front.rank, front.call.group) if front.call else None
    return view is not None and not view.any.members_known and len(view.ranks) == 1


def _finding(
    world: World, fronts: dict[int, Pending], culprits: list[int], alone: set[int]
) -> Finding:
    steps = []
    for rank, front in sorted(fronts.items()):
        assert front.call is not None
        view = world.view(rank, front.call.group)
        place = numbered(view.any, front.call.seq) if view is not None else ""
        unknown = ": who else is in that group is not in this kind of record"
        steps.append(
            f"rank {rank} waits in {call_text(front.call)} {place}{unknown * (rank in alone)}"
        )
    told = f"{'; '.join(steps[:MOST_STEPS])}{'; ...' * (len(steps) > MOST_STEPS)}"
    first = fronts[culprits[0]]
    assert first.call is not None
    view = world.view(culprits[0], first.call.group)
    return Finding(
        kind="deadlock",
        message=f"{AMONG}: {told}",
        headline=AMONG,
        culprits=tuple(culprits),
        victims=tuple(sorted(fronts.keys() - set(culprits))),
        proven=False,
        group=group_evidence(view.any) if view else None,
        seq=first.call.seq,
        ranks={rank: standing(world, rank) for rank in chosen(culprits, fronts)},
        details=steps,
        observable_ns=max(front.wait.since_ns for front in fronts.values()),
    )


MOST_FRONTS = 16
"""The groups of one rank that are compared, by their oldest pending calls."""
_Front = tuple[int, int]
"""A group, by its place in `World.groups`, and the number of its call."""


def opposed_order(world: World) -> list[Candidate]:
    """Returns at most one finding, of the first such pair of calls. Who issued them in the order of
    fewer ranks is to blame; all are where as many did it either way."""
    orders: dict[tuple[_Front, _Front], dict[int, tuple[Call, Call]]] = {}
    for rank, fronts in _fronts(world).items():
        for (first, one), (second, two) in combinations(fronts, 2):
            orders.setdefault((first, second), {})[rank] = (one, two)
    for (first, second), ranks in orders.items():
        others = orders.get((second, first))
        if others:
            return [Candidate(_opposed(world, first, ranks, others))]
    return []


def _opposed(
    world: World,
    first: _Front,
    ranks: dict[int, tuple[Call, Call]],
    others: dict[int, tuple[Call, Call]],
) -> Finding:
    """`ranks` issued the call `first` before the other one of the pair, `others` after it; each has
    its two calls in its own order."""
    view = world.groups[first[0]]
    steps = [_step(world, who) for who in (ranks, others)]
    fewer, more = sorted((ranks, others), key=len)
    culprits = tuple(sorted({*fewer, *(more if len(more) == len(fewer) else ())}))
    waiting = [rank for rank in sorted(world.waiting) if rank not in culprits]
    return Finding(
        kind="deadlock",
        message=(
            "suspected: calls of two groups pend that were issued in opposite order: "
            f"{'; '.join(steps)}"
        ),
        culprits=culprits,
        victims=tuple(waiting),
        proven=False,
        group=group_evidence(view.any),
        seq=first[1],
        ranks={rank: standing(world, rank) for rank in chosen(culprits, waiting)},
        details=steps,
        observable_ns=max(call.issued_ns for call in next(iter(ranks.values()))),
    )


def _fronts(world: World) -> dict[int, list[tuple[_Front, Call]]]:
    """Returns each rank's oldest pending call of each of its groups, in the order in which it
    issued them."""
    found: dict[int, list[tuple[_Front, Call]]] = {}
    for number, view in enumerate(world.groups):
        for rank, state in view.states.items():
            if state.completed is not None and state.completed < state.issued:
                call = world.collective(rank, view, state.completed)
                if call is not None:
                    found.setdefault(rank, []).append(((number, call.seq), call))
    for rows in found.values():
        rows.sort(key=lambda row: row[1].number)
        del rows[MOST_FRONTS:]
    return dict(sorted(found.items()))


def _step(world: World, ranks: dict[int, tuple[Call, Call]]) -> str:
    """Tells in words in which order these ranks issued the two calls, by the first of them."""
    rank, pair = next(iter(ranks.items()))
    told = []
    for call in pair:
        view = world.view(rank, call.group)
        assert view is not None, "it is the call of a group's view"
        told.append(f"{call_text(call)} {world.place(view, call)}")
    return f"{ranks_text(ranks)} issued {' before '.join(told)}"

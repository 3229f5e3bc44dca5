"""Everybody waits, and some alone in groups of which the record does not say who else is in them
(`Group.members_known`): each of those waits for one of the others, and whoever that is, following
who waits for whom ends in a cycle.

The culprits are the ranks without which there is none; where there are none of these, all.
"""

from __future__ import annotations

from ...record.wording import call_text, numbered
from ..facts.cycles import find_cycle
from ..facts.evidence import chosen, standing
from ..facts.needs import Need, Needs
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
    culprits = [rank for rank in sorted(fronts) if not _cycle_without(waiting, rank)]
    return [Candidate(_finding(world, fronts, culprits or sorted(fronts), alone))]


def _is_alone(world: World, front: Pending) -> bool:
    """A call of a group of one is never waited in."""
    view = world.view(front.rank, front.call.group) if front.call else None
    return view is not None and not view.any.members_known and len(view.ranks) == 1


def _cycle_without(waiting: dict[int, list[Need]], rank: int) -> bool:
    return find_cycle(waiting, waiting.keys() - {rank}) is not None


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

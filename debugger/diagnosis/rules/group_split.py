"""Did all ranks split a group in the same way?

`split_group` must be called by every rank of a group, with the same lists. A rank has on record in
which of them it is, so two lists of one split that share a rank must be the same list; ranks whose
lists share none cannot be told apart from ranks that agree. The first split that differs is the
finding.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...record.notes import SplitNote
from ...record.snapshot import GroupKey, Note
from ...record.wording import numbered, ranks_text, verb
from ..facts.evidence import chosen
from ..facts.world import World
from ..findings import CallIs, Finding, RankEvidence, group_evidence
from ..limits import SECOND_NS, Candidate

Part = tuple[int, ...]
MOST_SHOWN = 16
Made = Mapping[int, tuple[Part, Note]]
"""The part that each rank is in, and its note."""


def different_splits(world: World) -> list[Candidate]:
    """Returns at most one finding for each group."""
    splits: dict[tuple[GroupKey, int], dict[int, tuple[Part, Note]]] = {}
    for rank in world.eventful:
        for note in SplitNote.among(world.ranks[rank].notes):
            split = SplitNote.read(note.data)
            if split is not None and rank not in world.unrecorded:
                made = splits.setdefault((split.group, split.number), {})
                made[rank] = (split.ranks, note)
    found: dict[GroupKey, Candidate] = {}
    for (group, number), made in sorted(splits.items()):
        if group not in found and (candidate := _compared(world, group, number, made)):
            found[group] = candidate
    return list(found.values())


def _compared(world: World, group: GroupKey, number: int, made: Made) -> Candidate | None:
    makers: dict[Part, list[int]] = {}
    for rank, (part, _) in made.items():
        makers.setdefault(part, []).append(rank)
    against = [
        (part, rank) for part in makers for rank in part if rank in made and made[rank][0] != part
    ]
    view = world.view(next(iter(made)), group)
    if not against or view is None:
        return None
    disputed = {rank for part, rank in against} | {r for part, _ in against for r in makers[part]}
    culprits = _odd_part(made, makers, against) & disputed or disputed
    victims = tuple(sorted(disputed - culprits))
    parts = [
        f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} in {_text(part)}"
        for part, ranks in sorted(makers.items(), key=lambda item: (len(item[1]), item[1]))
        if not disputed.isdisjoint(ranks)
    ]
    times = sorted(note.time_ns for rank, (_, note) in made.items() if rank in disputed)
    coming = any(rank not in made and world.may_come(rank) for rank in view.ranks)
    undecided_ns = int(world.limits.undecided_s * SECOND_NS) if coming else 0
    finding = Finding(
        kind="group_mismatch",
        message=(
            f"ranks disagree at split {numbered(view.any, number)}: {'; '.join(parts[:4])}; "
            "all ranks must give split_group the same lists"
        ),
        culprits=tuple(sorted(culprits)),
        victims=victims,
        group=group_evidence(view.any),
        ranks={
            rank: RankEvidence(
                "called", f"split_group({_text(part)})", note.site, call_is=CallIs.OBJECT
            )
            for rank in chosen(tuple(sorted(culprits)), victims)
            for part, note in [made[rank]]
        },
        observable_ns=times[1],
        data={"index": number},
    )
    return Candidate(finding, ready_ns=finding.observable_ns + undecided_ns)


def _odd_part(
    made: Made, makers: Mapping[Part, list[int]], against: list[tuple[Part, int]]
) -> set[int]:
    """The fewest ranks that are in one part, and without whom all others agree; none where it may
    be these or those."""
    able = [
        set(makers[part])
        for part in makers
        if all(one == part or made[rank][0] == part for one, rank in against)
    ]
    able.sort(key=len)
    alone = len(able) == 1 or (len(able) > 1 and len(able[0]) < len(able[1]))
    return able[0] if alone else set()


def _text(part: Part) -> str:
    """In their order, for it may be what differs."""
    shown = [*map(str, part[:MOST_SHOWN]), *(["..."] if len(part) > MOST_SHOWN else [])]
    return f"[{', '.join(shown)}]" if part else "no list"

"""Replicas that have drifted apart, from the digests that ranks put on record around their steps.

Digests are compared where two ranks took them at the same moment (see `snapshot.Digest`). The first
moment at which they differ is the finding; it waits for ranks that have not come so far, since they
decide who is in the minority, but not for those that are very late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...record.majority import Vote, vote
from ...record.snapshot import Digest, GroupKey, Replicas
from ...record.wording import group_name, printable, ranks_text, verb
from ..facts.world import World
from ..findings import Finding, GroupEvidence, RankEvidence, group_evidence
from ..limits import SECOND_NS, Candidate

Moment = tuple[int, int]
MOST_PARTIES = 4


def differing_replicas(world: World) -> list[Candidate]:
    """One finding for each set of replicas of which some differ."""
    members: dict[tuple[GroupKey, str], dict[int, Replicas]] = {}
    for number, rank in sorted(world.ranks.items()):
        for replicas in rank.replicas:
            members.setdefault((replicas.group, replicas.key), {})[number] = replicas
    found = (
        _first_difference(world, replicas) for replicas in members.values() if len(replicas) > 1
    )
    return [Candidate(finding) for finding in found if finding is not None]


def _first_difference(world: World, replicas: dict[int, Replicas]) -> Finding | None:
    digests = {rank: one.digests() for rank, one in replicas.items()}
    moments: dict[Moment, dict[int, Digest]] = {}
    for rank, rows in digests.items():
        for row in rows:
            moments.setdefault(row.moment, {})[rank] = row
    for moment in sorted(moments):
        rows_of = moments[moment]
        if len({row.total for row in rows_of.values()}) > 1:
            if _may_still_come(world, replicas, digests, moment, rows_of):
                return None
            return _finding(world, replicas, moment, rows_of)
    return None


def _may_still_come(
    world: World,
    replicas: dict[int, Replicas],
    digests: dict[int, Sequence[Digest]],
    moment: Moment,
    rows: dict[int, Digest],
) -> bool:
    """Whether a rank of the group has not been there yet, and is not very late either."""
    late_ns = int(world.limits.notice_after_s * SECOND_NS)
    if world.snapshot.finished or world.now_ns - _observable_ns(rows) > late_ns:
        return False
    group = _group(world, replicas)
    ranks = group.ranks if group else tuple(replicas)
    return any(
        rank in world.ranks
        and not world.ended(rank)
        and not any(row.moment >= moment for row in digests.get(rank, ()))
        for rank in ranks
    )


def _finding(
    world: World, replicas: dict[int, Replicas], moment: Moment, rows: dict[int, Digest]
) -> Finding:
    answers: dict[int, list[int]] = {}
    for rank, row in rows.items():
        answers.setdefault(row.total, []).append(rank)
    result = vote(answers, 0)
    first = rows[result.parties[0][1][0]]
    group = _group(world, replicas)
    where = f' in group "{group_name(group.name, group.desc)}"' if group else ""
    message = (
        f"replicas differ {_after(first.step)}{where}: {_which(replicas, moment, rows)}; "
        + _parties(result, rows)
    )
    return Finding(
        kind="divergence",
        message=message,
        culprits=result.culprits,
        victims=result.others,
        group=group,
        ranks={
            rank: RankEvidence(_after(rows[rank].step), None, rows[rank].site)
            for rank in (*result.culprits, *result.others)
        },
        observable_ns=_observable_ns(rows),
        data={"step": first.step},
    )


def _after(step: int) -> str:
    return f"after optimizer step {step}" if step else "before the first optimizer step"


def _which(replicas: dict[int, Replicas], moment: Moment, rows: dict[int, Digest]) -> str:
    vectors = [replicas[rank].parameters(moment) for rank in rows]
    names = next(iter(replicas.values())).names
    whole = [vector for vector in vectors if vector is not None]
    differ = (
        [name for name, *values in zip(names, *whole, strict=False) if len({*values}) > 1]
        if len(whole) > 1
        else []
    )
    if not differ:
        return "it is not on record any more which parameter was the first"
    return (
        f'parameter "{printable(differ[0], 120)}" is the first that does '
        f"({len(differ)} of {len(names)})"
    )


def _parties(result: Vote[int], rows: dict[int, Digest]) -> str:
    """Those outside the majority first. Their steps, where these differ, are the reason."""
    first, *rest = result.parties
    parties = result.parties if result.majority is None else (*rest, first)
    steps = {row.step for row in rows.values()}
    texts = []
    for total, ranks in parties[:MOST_PARTIES]:
        made = {rows[rank].step for rank in ranks}
        count = f" after {made.pop()} steps" if len(steps) > 1 and len(made) == 1 else ""
        texts.append(f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {total:016x}{count}")
    return ", ".join(texts) + (", ..." if len(parties) > MOST_PARTIES else "")


def _observable_ns(rows: dict[int, Digest]) -> int:
    return max(row.time_ns for row in rows.values())


def _group(world: World, replicas: dict[int, Replicas]) -> GroupEvidence | None:
    views: Iterator[GroupEvidence] = (
        group_evidence(view.any)
        for rank, one in replicas.items()
        if (view := world.view(rank, one.group)) is not None
    )
    return next(views, None)

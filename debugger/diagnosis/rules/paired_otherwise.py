"""Do all ranks give a wrapper the same tensors in the same order?

DDP and FSDP pair what they are given by position, and torch compares no name: where one rank has
its heads in another order, the gradients of different heads are averaged, silently.

1. Ranks that have given a wrapper tensors of the same names, in another order, or of another shape,
   dtype or `requires_grad`, have given other ones. Where the names themselves differ nothing is
   said: a module may be named after its rank.
2. What ranks have made between the same two collectives of the group is compared, as sets: FSDP
   communicates only later, so that a program may wrap the same modules in any order. So ranks are
   compared once they have issued the next collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ...record.dispute import vote
from ...record.notes import PairedNote
from ...record.snapshot import Note
from ...record.wording import printable, ranks_text, verb
from ..facts.evidence import chosen
from ..facts.world import World
from ..findings import Finding, RankEvidence, group_evidence
from ..limits import Candidate

Orders = dict[int, tuple[PairedNote, Note]]
"""By their hashes, the orders in which one rank has given the same names, and when and where."""


def paired_otherwise(world: World) -> list[Candidate]:
    """Returns one finding for each wrapper, group and moment."""
    made: dict[object, dict[int, Orders]] = defaultdict(lambda: defaultdict(dict))
    for rank in world.eventful:
        for note in world.notes(rank, PairedNote) if rank not in world.unrecorded else ():
            told = PairedNote.read(note.data)
            group = world.ranks[rank].groups.get(told.group) if told else None
            if told and group and (group.issued > told.seq or world.ended(rank)):
                key = (told.wrapper, group.key, group.ranks, told.seq, told.names)
                made[key][rank].setdefault(told.order, (told, note))
    return [
        _judge(world, by_rank)
        for by_rank in made.values()
        if any(orders.keys() != next(iter(by_rank.values())).keys() for orders in by_rank.values())
    ]


def _judge(world: World, by_rank: Mapping[int, Orders]) -> Candidate:
    parties: dict[frozenset[int], list[int]] = defaultdict(list)
    for rank, orders in by_rank.items():
        parties[frozenset(orders)].append(rank)
    told, _ = next(iter(by_rank[min(by_rank)].values()))
    group = world.ranks[min(by_rank)].groups[told.group]
    result = vote(parties, sum(world.may_come(one) for one in group.ranks if one not in by_rank))
    (usual, most), (other, few) = result.parties[:2]
    shared = usual & other
    given = {rank: one[min(one.keys() - shared or one)] for rank, one in by_rank.items()}
    rows = {rank: list(map(printable, one.rows.split("\n"))) for rank, (one, _) in given.items()}
    alike = zip(rows[few[0]], rows[most[0]], strict=False)
    place = next((at for at, pair in enumerate(alike) if len(set(pair)) > 1), None)
    what = f"the {told.count} tensors in another order"  # beyond those that are on record
    if place is not None:
        names = [rows[rank][place].split(" ")[0] for rank in (few[0], most[0])]
        if names[0] == names[1]:
            names = [rows[rank][place] for rank in (few[0], most[0])]
        most_text = f"{ranks_text(most)} {verb(most, 'has', 'have')}"
        others = "the others have" if result.majority is not None else most_text
        what = f"{names[0]} where {others} {names[1]}, at #{place} of {told.count}"
    evidence = {
        rank: RankEvidence(f"has {rows[rank][place or 0]}", None, given[rank][1].site)
        for rank in chosen(result.culprits, result.others)
    }
    finding = Finding(
        kind="group_mismatch",
        message=f"ranks disagree on what {printable(told.wrapper, 80)} pairs by position: "
        f"{ranks_text(few)} {verb(few, 'has', 'have')} {printable(what)}",
        culprits=result.culprits,
        victims=result.others,
        group=group_evidence(group),
        ranks=evidence,
        observable_ns=max(given[most[0]][1].time_ns, given[few[0]][1].time_ns),
        data={"parameters": {str(rank): rows[rank] for rank in (most[0], few[0])}},
    )
    return Candidate(finding, ready_ns=finding.observable_ns + world.limits.hold_ns(result))

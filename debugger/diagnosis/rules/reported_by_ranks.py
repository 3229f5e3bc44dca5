"""Findings that ranks have made themselves, with all they know, and put on record.

The ranks of one group that agree before each call (debug level DETAIL) have seen everybody's call,
also those of other hosts, whose records are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...record.bounds import MOST_RANKS
from ...record.kinds import KINDS
from ...record.snapshot import GroupKey, Note
from ..facts.absence import cause_of
from ..facts.evidence import at_call, chosen, stand
from ..facts.world import World
from ..findings import Finding, GroupEvidence, group_evidence
from ..limits import Candidate

MOST_TOLD = 100
"""Different ones. Ranks stop at the first; what has more was not written by them."""


def told(world: World) -> list[Candidate]:
    """One finding for each that ranks have told, however many did."""
    notes: dict[tuple[object, ...], tuple[int, Note]] = {}
    for number, rank in sorted(world.ranks.items()):
        for note in rank.notes:
            if note.kind == "finding" and _makes_sense(note.data) and len(notes) < MOST_TOLD:
                data = note.data
                key = (data["finding"], str(data["group"]), data["seq"], tuple(data["culprits"]))
                first = notes.get(key)
                if first is None or note.time_ns < first[1].time_ns:
                    notes[key] = (number, note)
    return [Candidate(_finding(world, number, note)) for number, note in notes.values()]


def _makes_sense(data: Mapping[str, Any]) -> bool:
    """Whether a rank of ours wrote this: a record may be damaged, or malicious."""
    kind, group, seq = data.get("finding"), data.get("group"), data.get("seq")
    culprits, victims = data.get("culprits"), data.get("victims")
    return (
        isinstance(kind, str)
        and kind in KINDS
        and isinstance(group, list)
        and [type(part) for part in group] == [str, int]
        and (seq is None or type(seq) is int)
        and isinstance(culprits, list)
        and isinstance(victims, list)
        and len(culprits) > 0
        and len(culprits) + len(victims) <= MOST_RANKS
        and all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in (*culprits, *victims))
    )


def settled(candidates: list[Candidate], own: list[Candidate]) -> list[Candidate]:
    """Without what is only suspicious of a call that the ranks themselves (`own`: what they have
    `told`) have found wrong."""
    wrong = {_call(one) for one in own}
    return [
        one
        for one in candidates
        if one.finding.severity == "error" or one.finding.group is None or _call(one) not in wrong
    ]


def _call(candidate: Candidate) -> tuple[str, int | None]:
    group = candidate.finding.group
    return (group.name if group else "", candidate.finding.seq)


def _finding(world: World, teller: int, note: Note) -> Finding:
    data = note.data
    name, incarnation = data["group"]
    culprits, victims = tuple(data["culprits"]), tuple(data["victims"])
    key: GroupKey = (str(name), int(incarnation))
    view = world.view(teller, key)
    members = tuple(sorted({*culprits, *victims}))
    kind, seq = str(data["finding"]), data["seq"]
    ranks = chosen(culprits, victims)
    if seq is not None:
        evidence = at_call(world, ranks, key, int(seq))
    else:
        evidence = stand(world, ranks)
    if (seq is None or data.get("elsewhere")) and note.site is not None and teller in evidence:
        evidence[teller] = replace(evidence[teller], location=note.site)
    return Finding(
        kind=kind,
        message=note.message,
        culprits=culprits,
        victims=victims,
        group=group_evidence(view.any) if view else GroupEvidence(key[0], "", members),
        seq=seq,
        ranks=evidence,
        headline=str(data.get("headline", "")),
        cause=cause_of(world, culprits[0]) if kind == "missing_rank" else None,
        observable_ns=note.time_ns,
    )

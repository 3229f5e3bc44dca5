"""Calls of one sequence number that do not fit: what a flight recorder proves beyond doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..diagnosis.findings import CallIs, Finding, RankEvidence
from ..record.dispute import dispute_headline, opponents, parties_text
from ..record.majority import vote
from ..record.signature import Signature, agreement_key, disagreement
from ..record.wording import place
from .evidence import NOT_IN_RECORD, evident
from .flight_recorder import COALESCED, Entry
from .trace import Trace, TracedGroup


def mismatches(trace: Trace) -> list[Finding]:
    """The first of each group; of groups that share ranks only the earliest is a cause."""
    firsts = sorted(
        (one for group in trace.groups if (one := _first_mismatch(group)) is not None),
        key=lambda one: one.observable_ns,
    )
    causes: list[Finding] = []
    for one in firsts:
        ranks = set(one.group.ranks if one.group else ())
        if all(ranks.isdisjoint(other.group.ranks if other.group else ()) for other in causes):
            causes.append(one)
    return causes


def _first_mismatch(group: TracedGroup) -> Finding | None:
    made: dict[int, dict[int, Sequence[Entry]]] = {}
    for rank, calls in group.calls.items():
        for seq, entries in calls.by_seq.items():
            made.setdefault(seq, {})[rank] = entries
    for seq in sorted(made):
        signatures = _comparable(made[seq])
        if len(set(map(id, signatures.values()))) == 1:
            continue  # the same object is the same call
        different = {id(one): one for one in signatures.values()}
        known = {at: agreement_key(one) for at, one in different.items()}
        keys = {rank: known[id(one)] for rank, one in signatures.items()}
        if len(set(keys.values())) > 1:
            return _mismatch(group, seq, signatures, keys, made[seq])
    return None


def _comparable(made: Mapping[int, Sequence[Entry]]) -> dict[int, Signature]:
    """What the ranks must agree on. A coalesced call is compared by its ops alone, and a rank that
    has issued no more than some of its parts (its host stands between them) is not compared."""
    if all(len(entries) == 1 for entries in made.values()):
        return {rank: entries[0].signature for rank, entries in made.items()}
    ops = {rank: [entry.signature.op for entry in entries] for rank, entries in made.items()}
    whole = {rank for rank, mine in ops.items() if mine[-1] == COALESCED}
    parts = {op for rank in whole for op in ops[rank]}
    return {
        rank: Signature(op=" + ".join(dict.fromkeys(op for op in mine if op != COALESCED)))
        for rank, mine in ops.items()
        if rank in whole or not parts.issuperset(mine)
    }


def _mismatch(
    group: TracedGroup,
    seq: int,
    signatures: Mapping[int, Signature],
    keys: Mapping[int, tuple[object, ...]],
    entries: Mapping[int, Sequence[Entry]],
) -> Finding:
    answers: dict[tuple[object, ...], list[int]] = {}
    calls: dict[tuple[object, ...], Signature] = {}
    for rank, key in keys.items():
        answers.setdefault(key, []).append(rank)
        calls.setdefault(key, signatures[rank])
    result = vote(answers, 0)
    usual, odd = opponents(result)
    where = f"{place(group.key[0], group.key[1], seq)} ({len(group.ranks)} ranks)"
    headline = dispute_headline(where)
    absent = tuple(rank for rank in group.ranks if rank not in signatures)
    return Finding(
        kind=disagreement(calls[usual], calls[odd]) or "shape_mismatch",
        message=f"{headline}: {parties_text(result, calls)}",
        headline=headline,
        culprits=result.culprits,
        victims=tuple(sorted({*result.others, *absent})),
        group=group.evidence(),
        seq=seq,
        ranks={
            rank: RankEvidence(
                f"called #{seq}",
                str(signatures[rank]),
                entries[rank][0].site,
                entries[rank][0].stack,
                CallIs.ALL,
            )
            for rank in evident(result.culprits, signatures)
        },
        observable_ns=min(one.created_ns for many in entries.values() for one in many),
        side=None,
        not_in_record=NOT_IN_RECORD,
    )

"""Calls of one sequence number that do not fit: what a flight recorder proves beyond doubt, but for
whose call is the wrong one where ranks that have no record of theirs would decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..diagnosis.findings import CallIs, Finding, RankEvidence
from ..diagnosis.folding.alike import alike_mismatches
from ..record.dispute import dispute_headline, message_difference, opponents, parties_text
from ..record.majority import vote
from ..record.signature import Signature, agreement_key, disagreement
from ..record.wording import place
from .evidence import evident
from .flight_recorder import COALESCED, Entry, launch_of
from .trace import Trace, TracedGroup
from .waits import End, ends


def mismatches(trace: Trace) -> list[Finding]:
    """The first of each group; of groups that share ranks only the earliest is a cause, and what
    ranks of every row of a mesh have done on the same lines is one."""
    found = (
        one
        for group in trace.groups
        for one in (_first_mismatch(trace, group), _message_mismatch(trace, group))
    )
    firsts = sorted((one for one in found if one is not None), key=lambda one: one.observable_ns)
    causes: list[Finding] = []
    for one in firsts:
        ranks = set(one.group.ranks if one.group else ())
        if all(ranks.isdisjoint(other.group.ranks if other.group else ()) for other in causes):
            causes.append(one)
    return alike_mismatches(causes)


def _first_mismatch(trace: Trace, group: TracedGroup) -> Finding | None:
    if len({calls.likeness for calls in group.calls.values() if calls.entries}) < 2:
        return None
    made: dict[int, dict[int, Sequence[Entry]]] = {}
    for rank, calls in group.calls.items():
        for seq, entries in calls.by_seq.items():
            made.setdefault(seq, {})[rank] = entries
    cut = {
        rank: id(dump.entries[0])
        for rank in group.calls
        if (dump := trace.dumps[rank]).entries and not dump.whole
    }
    for seq in sorted(made):
        signatures = _comparable(made[seq], cut)
        if len(set(map(id, signatures.values()))) == 1:
            continue  # the same object is the same call
        if group.key[2] and all(_is_past(made[seq][rank][0]) for rank in signatures):
            continue  # of worlds that were made again nobody says who is in which
        different = {id(one): one for one in signatures.values()}
        known = {at: agreement_key(one) for at, one in different.items()}
        keys = {rank: known[id(one)] for rank, one in signatures.items()}
        if len(set(keys.values())) > 1:
            return _mismatch(group, seq, signatures, keys, made[seq])
    return None


def _is_past(entry: Entry) -> bool:
    """Whether it is over, in a record of gloo's, which does not tell the members of groups."""
    return entry.done and not entry.tells_completion


def _comparable(
    made: Mapping[int, Sequence[Entry]], cut: Mapping[int, int]
) -> dict[int, Signature]:
    """What the ranks must agree on. A coalesced call is compared by its ops alone, and a rank that
    has issued no more than some of its parts (its host stands between them) is not compared, nor
    is one whose record begins amid the parts (`cut`: the `id` of its first entry)."""
    coalesced = any(len(many) > 1 or many[0].signature.op == COALESCED for many in made.values())
    if not coalesced:
        return {rank: entries[0].signature for rank, entries in made.items()}
    ops = {
        rank: [entry.signature.op for entry in entries]
        for rank, entries in made.items()
        if id(entries[0]) != cut.get(rank)
    }
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
    absent = tuple(rank for rank in group.ranks if rank not in signatures)
    result = vote(answers, len(absent))
    usual, odd = opponents(result, calls)
    where = f"{place(group.key[0], group.key[1], seq)} ({len(group.ranks)} ranks)"
    headline = dispute_headline(where)
    if result.open:
        headline = f"suspected: {headline}"
    return Finding(
        kind=disagreement(calls[usual], calls[odd]) or "shape_mismatch",
        message=f"{headline}: {parties_text(result, calls)}",
        headline=headline,
        culprits=result.culprits,
        victims=tuple(sorted({*result.others, *absent})),
        proven=not result.open,
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
    )


def _message_mismatch(trace: Trace, group: TracedGroup) -> Finding | None:
    """The first message whose two ends differ in size or dtype."""
    first: tuple[int, int, int, End] | None = None
    for source, mine in ends(trace, group).items():
        for end in mine:
            received = end.counterpart
            if end.entry.signature.op != "send" or received is None:
                continue
            if _fit(end.entry.signature, received.signature):
                continue
            if end.whole or _stand_in_it(trace, source, end, received):
                since_ns = max(end.entry.created_ns, received.created_ns)
                if first is None or since_ns < first[0]:
                    first = (since_ns, source, end.peer, end)
    if first is None:
        return None
    since_ns, source, destination, end = first
    received = end.counterpart
    assert received is not None
    sent = {source: end.entry, destination: received}
    number = end.at if end.whole else None
    text = message_difference(end.entry.signature, received.signature, source, destination, number)
    return Finding(
        kind="p2p_mismatch",
        message=text if end.whole else f"suspected: {text}",
        culprits=(source, destination),
        victims=(),
        proven=end.whole,
        group=group.evidence(),
        ranks={
            rank: RankEvidence("called", str(entry.signature), entry.site, entry.stack, CallIs.ALL)
            for rank, entry in sent.items()
        },
        observable_ns=since_ns,
        side=None,
    )


def _fit(sent: Signature, received: Signature) -> bool:
    if sent.tensors == received.tensors or not sent.tensors or not received.tensors:
        return True
    return sum(sent.counts) == sum(received.counts) and sent.dtypes == received.dtypes


def _stand_in_it(trace: Trace, source: int, end: End, received: Entry) -> bool:
    """Whether both ranks stand in this very message: of records that have lost their beginning
    nothing else tells that the two ends are of one."""
    pairs = ((source, end.entry), (end.peer, received))
    fronts = [(trace.first_pending(rank), entry) for rank, entry in pairs]
    return all(
        front is not None and launch_of(front) == launch_of(entry) for front, entry in fronts
    )

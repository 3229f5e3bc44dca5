"""Do the ranks of each group call the same collectives? By hash chain, culprits by majority.

Rules:
1. Ranks are compared as far as both of them have come. Those with the same count and the same
   chain are one class, and one of them speaks for all: healthy groups cost no look into a ring.
2. The class that came furthest is the reference. The first call where any class differs from it
   is the first mismatch of the group, and the only one reported: after it everything differs.
3. The culprits are those outside the largest agreeing set; without one, all who called.
4. Where the chains agree but the shapes do not (same count, other shape), it is a warning.
5. A verdict which ranks that have not come yet could turn is held back (`Limits.hold_ns`).
6. Where a group has no majority, as no pair of ranks has, the groups of the same description, such
   as the other rows of a mesh, decide (`with_other_rows`).
7. Held back is also one that hangs on a call which its backend may be about to refuse: that is as
   if it had not been made. Who waits in its call sleeps, mostly; one that has not had the processor
   since it made it does not.

The splits of all-to-all calls have to fit together pair by pair (`split_mismatches`): every rank
adds what it sends and subtracts what it expects, hashed, into a running balance. When all members
of a group have made the same number of calls, the balances add up to 0 (mod 2**64) exactly if every
pair agreed in every call. So a healthy group costs one addition a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...record.dispute import (
    Vote,
    differences_text,
    dispute_headline,
    opponents,
    parties_text,
    split_dispute,
    uneven_pairs,
    vote,
)
from ...record.layout import Activity, CallState
from ...record.ops import op_of
from ...record.signature import MASK, agreement_key, disagreement, exact_key
from ...record.snapshot import Call, Group
from ...record.wording import UNDEFINED, numbered, printable, ranks_text, verb
from ..facts.call_histories import (
    Divergence,
    Story,
    compare_histories,
    first_divergence,
    lines_agree,
    lines_known,
    parting_before,
)
from ..facts.evidence import at_call, chosen, view_of
from ..facts.needs import Needs
from ..facts.world import GroupView, World, begun
from ..findings import Finding, group_evidence
from ..limits import ON_CORE_NS, Candidate
from ..story import step

CHAIN, EXACT = 0, 1
MOST_ASKED = 64
"""Ranks that speak for all that called the same."""
CALLS_BEFORE = 16
"""So many calls before the one in dispute have to be the same in the groups that decide it."""


@dataclass(frozen=True, slots=True)
class Kin:
    """Ranks of a group with equal counts and equal chains: they called the same."""

    issued: int
    chain: int
    ranks: list[int]


def mismatches(world: World, needs: Needs) -> list[Candidate]:
    """Returns at most one error per group, and at most one warning for shapes."""
    found: list[Candidate] = []
    for view in world.groups:
        if len(view.states) < 2:
            continue
        candidate = _compare(world, needs, view, CHAIN) or _compare(world, needs, view, EXACT)
        if candidate:
            found.append(candidate)
    return found


def _compare(world: World, needs: Needs, view: GroupView, which: int) -> Candidate | None:
    rows: dict[tuple[int, int], Kin] = {}
    for rank, group in view.states.items():
        chain = group.exact if which else group.chain
        row = rows.get((group.issued, chain))
        if row is None:
            rows[group.issued, chain] = Kin(group.issued, chain, [rank])
        else:
            row.ranks.append(rank)
    kin = sorted((row for row in rows.values() if row.issued), key=lambda row: -row.issued)
    if len(kin) < 2:
        return None
    reference = _chain_of(world, view, kin[0], which)
    first: Divergence | None = None
    for other in kin[1:]:
        found = first_divergence(reference, _chain_of(world, view, other, which), other.issued)
        if found and (first is None or found.seq < first.seq):
            first = found
    return _judge(world, needs, view, kin, first, which) if first else None


def _chain_of(world: World, view: GroupView, kin: Kin, which: int) -> Callable[[int], int | None]:
    history = world.ranks[kin.ranks[0]].history

    def after(count: int) -> int | None:
        if count == kin.issued:
            return kin.chain
        chains = history.chains_after(view.key, count) if history else None
        return chains[which] if chains else None

    return after


def _judge(
    world: World,
    needs: Needs,
    view: GroupView,
    kin: list[Kin],
    divergence: Divergence,
    which: int,
) -> Candidate | None:
    seq = divergence.seq
    answers: dict[tuple[object, ...], list[int]] = {}
    speakers: dict[tuple[object, ...], Call] = {}
    lost: list[int] = []
    for row in kin:
        if row.issued <= seq:
            continue
        history = world.ranks[row.ranks[0]].history
        call = history.at(view.key, seq) if history else None
        if call is None:
            lost += row.ranks
            continue
        key = exact_key(call.signature) if which else agreement_key(call.signature)
        answers.setdefault(key, []).extend(row.ranks)
        speakers.setdefault(key, call)
    if len(answers) < 2:
        gone = which == CHAIN and (lost or not divergence.exact)
        return _overwritten(world, view, kin, divergence) if gone else None
    absent = world.absent(view, seq)
    coming = [
        rank for rank in absent if world.may_come(rank) and not _stuck(world, needs, view, rank)
    ]
    if not world.knows.clock:  # nobody comes any more, and who is not seen may have come
        absent = frozenset(view.ranks).difference(*answers.values())
        coming = list(absent)
    result = vote(answers, len(coming))
    signatures = {key: call.signature for key, call in speakers.items()}
    usual, unusual = (speakers[key] for key in opponents(result, signatures))
    kind = disagreement(usual.signature, unusual.signature)
    if kind is None:
        if which == CHAIN and agreement_key(usual.signature) == agreement_key(unusual.signature):
            return None
        kind = "shape_mismatch"
    finding = _finding(world, view, divergence, result, speakers, kind, warning=bool(which))
    if not world.knows.clock:
        finding = replace(finding, victims=tuple(sorted({*finding.victims, *absent})))
        if result.open:
            message, headline = (f"suspected: {one}" for one in (finding.message, finding.headline))
            finding = replace(finding, proven=False, message=message, headline=headline)
    unknown = sorted(
        rank for rank in absent if rank not in world.ranks and not world.may_come(rank)
    )
    if unknown:
        said = f"what {ranks_text(unknown)} called is not known: no record of it is left"
        finding = replace(finding, details=(*finding.details, said))
    agreeing = all(call.agrees and not call.bounded for call in speakers.values())
    if result.majority is None and any(seq >= begun(one.any) for one in _other_rows(world, view)):
        result = replace(result, open=True)
    hold_ns = world.limits.hold_ns(result, agreeing)
    if any(_entering(world, view, ranks, seq) for _, ranks in result.parties):
        hold_ns = max(hold_ns, ON_CORE_NS)
    return Candidate(finding, ready_ns=finding.observable_ns + hold_ns)


def _entering(world: World, view: GroupView, ranks: Sequence[int], seq: int) -> bool:
    """None of them has gone beyond this call, or sleeps in it: perhaps the backend refuses it."""
    return all(
        world.ranks[rank].process.state == "R"
        and view.states[rank].issued == seq + 1
        and any(
            one.call is not None
            and (one.call.group, one.call.seq, one.call.state) == (view.key, seq, CallState.ISSUED)
            for one in world.pending(rank)
        )
        for rank in ranks[:MOST_ASKED]
    )


def _stuck(world: World, needs: Needs, view: GroupView, rank: int) -> bool:
    """Returns whether the rank waits in the layer without moving: it will not come and change the
    vote.

    A rank is not stuck where it waits in an earlier call of the group, or for a group to be made,
    which others have left behind: that may be complete, and the rank has not had the processor
    since. Nor is it where all that it waits for has come, in a call of another group or a message:
    it will notice.
    """
    pending = world.pending(rank)
    for one in pending:
        if one.wait.activity in (Activity.INIT, Activity.NEW_GROUP):
            return False
        if one.call is not None and one.call.group == view.key and one.call.signature.peer is None:
            return False
        if one.call is not None and needs.of(one) is None:
            return False
    return bool(pending) and world.ranks[rank].free_threads == 0 and world.stable(rank)


def _finding(
    world: World,
    view: GroupView,
    divergence: Divergence,
    result: Vote[tuple[object, ...]],
    speakers: dict[tuple[object, ...], Call],
    kind: str,
    *,
    warning: bool,
) -> Finding:
    seq = divergence.seq
    calls = {key: call.signature for key, call in speakers.items()}
    group = view.any
    before = "" if divergence.exact else "at or before "
    headline = dispute_headline(f"{before}{numbered(group, seq)} ({len(view.ranks)} ranks)")
    usual, odd = opponents(result, calls)
    differences = differences_text(calls[usual], calls[odd])
    message = f"{headline}: {parties_text(result, calls)}{differences}"
    headline += differences
    parties = dict(result.parties)
    story = Story((), "")
    if kind == "op_mismatch":
        story = compare_histories(
            world, view, parties[usual], parties[odd], seq, blame=result.majority is not None
        )
        if story.sentence:
            message += f"; {story.sentence}"
    if warning:
        message += " (same number of elements, other shape)"
    ranks = at_call(world, chosen(result.culprits, result.others), view.key, seq)
    # When the first two ranks of different parties had both called.
    firsts = []
    for _, party in result.parties:
        times = []
        for rank in party[:MOST_ASKED]:
            history = world.ranks[rank].history
            made = history.at(view.key, seq) if history else None
            if made is not None and made.issued_ns:
                times.append(made.issued_ns)
        if times:
            firsts.append(min(times))
    firsts.sort()
    return Finding(
        kind=kind,
        message=message,
        culprits=result.culprits,
        victims=result.others,
        missing=(),
        severity="warning" if warning else "error",
        group=group_evidence(group),
        seq=seq,
        ranks=ranks,
        details=(_agreed(world, view, divergence), *story.details),
        headline=headline,
        difference=story.sentence,
        observable_ns=firsts[1] if len(firsts) > 1 else world.now_ns,
        data={"exact_seq": divergence.exact},
    )


@step("other rows")
def with_other_rows(world: World, finding: Finding) -> Finding:
    """The finding of a group without a majority, with those as culprits who have not called what
    all other groups of its description that have come as far have called."""
    view = view_of(world, finding.group) if finding.group is not None else None
    if view is None or finding.seq is None or finding.victims or not finding.about.voted:
        return finding
    made = {rank: _calls_up_to(world, view, rank, finding.seq) for rank in finding.culprits}
    others = [
        {_calls_up_to(world, other, rank, finding.seq) for rank in other.ranks}
        for other in _other_rows(world, view)
    ]
    usual = set().union(*(calls for calls in others if None not in calls))
    agreeing = tuple(rank for rank, calls in made.items() if calls is not None and {calls} == usual)
    if not agreeing or len(agreeing) == len(made):
        return finding
    said = (
        f"the other groups that are {printable(view.any.desc, 80)!r} have all made it as "
        f"{ranks_text(agreeing)} {verb(agreeing, 'has', 'have')}"
    )
    return replace(
        finding,
        culprits=tuple(rank for rank in finding.culprits if rank not in agreeing),
        victims=agreeing,
        details=(*finding.details[:1], said, *finding.details[1:]),
    )


def _other_rows(world: World, view: GroupView) -> list[GroupView]:
    """The groups of the same description and size. There are none where ranks of one send messages
    to those of this one: that is another stage of a pipeline, and need not make the same calls."""
    desc = view.any.desc
    if desc in (UNDEFINED, ""):
        return []
    found = [
        other
        for other in world.groups
        if other.any.desc == desc and other.complete and len(other.ranks) == len(view.ranks)
        if other is not view
    ]
    theirs = {rank for other in found for rank in other.ranks}
    peers = {one.peer for rank in view.states for one in world.ranks[rank].channels}
    return found if theirs.isdisjoint({*view.ranks, *peers}) else []


def _calls_up_to(
    world: World, view: GroupView, rank: int, seq: int
) -> tuple[tuple[object, ...], ...] | None:
    """Returns what has to be the same of the rank's last calls up to this one, roots by their place
    in the group; None where one is not on record."""
    found = []
    for number in range(max(0, seq - CALLS_BEFORE), seq + 1):
        call = world.call_at(rank, view.key, number)
        if call is None:
            return None
        root = call.signature.root
        place = view.ranks.index(root) if root in view.ranks else root
        found.append(exact_key(replace(call.signature, root=place)))
    return tuple(found)


def _agreed(world: World, view: GroupView, divergence: Divergence) -> str:
    """Says up to where calls and lines agree."""
    if not divergence.exact:
        return "older calls are no longer on record: they may have disagreed before"
    if divergence.seq == 0:
        return "it is the first collective of the group"
    calls = _up_to(divergence.seq)
    parted = parting_before(world, view, divergence.seq)
    if parted is not None:
        lines = f"only on {_up_to(parted.seq)}" if parted.seq else "not"
        return f"their calls agree on {calls}, their lines {lines}"
    if not lines_known(view):
        return f"their calls agree on {calls}; lines are not in this record"
    if not lines_agree(view, divergence.seq):  # those of roles, which belong together
        return f"their calls agree on {calls}"
    return f"they agree on {calls}"


def _up_to(seq: int) -> str:
    return "#0" if seq == 1 else f"#0 to #{seq - 1}"


def _overwritten(
    world: World, view: GroupView, kin: list[Kin], divergence: Divergence
) -> Candidate | None:
    """The calls that differ were overwritten: the chains alone say who is outside the majority."""
    top = [row for row in kin if row.issued > divergence.seq]
    reference = min(row.issued for row in top)
    answers: dict[int, list[int]] = {}
    for row in top:
        chain = _chain_of(world, view, row, CHAIN)(reference)
        if chain is not None:
            answers.setdefault(chain, []).extend(row.ranks)
    if len(answers) < 2:
        return None
    result = vote(answers, 0)
    group: Group = view.any
    message = (
        f"ranks disagree at collective at or before {numbered(group, divergence.seq)} "
        f"({len(view.ranks)} ranks); {ranks_text(result.culprits)} "
        f"{verb(result.culprits, 'is', 'are')} outside the largest agreeing set, "
        "and the calls are no longer on record"
    )
    finding = Finding(
        kind="op_mismatch",
        message=message,
        culprits=result.culprits,
        victims=result.others,
        group=group_evidence(group),
        seq=divergence.seq,
        ranks=at_call(world, chosen(result.culprits, result.others), view.key, divergence.seq),
        details=(_agreed(world, view, divergence),),
        observable_ns=world.now_ns,
        data={"exact_seq": False},
    )
    return Candidate(finding)


MOST_DIRECT = 64
"""Groups up to this size are compared pair by pair before everybody has come, too."""


def split_mismatches(world: World) -> list[Candidate]:
    """Returns at most one finding per group: the first call with a pair that disagrees."""
    found = []
    for view in world.groups:
        if len(view.states) > 1 and any(group.balance for group in view.states.values()):
            candidate = _by_balance(world, view) or _by_pairs(world, view)
            if candidate:
                found.append(candidate)
    return found


def _by_balance(world: World, view: GroupView) -> Candidate | None:
    if not view.complete:
        return None
    issued = min(group.issued for group in view.states.values())
    if issued == 0 or _balance(world, view, issued) in (0, None):
        return None
    low, high = 0, issued
    while high - low > 1:
        middle = (low + high) // 2
        if _balance(world, view, middle) in (0, None):
            low = middle
        else:
            high = middle
    return _uneven(world, view, high - 1)


def _balance(world: World, view: GroupView, issued: int) -> int | None:
    total = 0
    for rank, group in view.states.items():
        if group.issued == issued:
            total += group.balance
            continue
        history = world.ranks[rank].history
        chains = history.chains_after(view.key, issued) if history else None
        if chains is None:
            return None
        total += chains[2]
    return total & MASK


def _by_pairs(world: World, view: GroupView) -> Candidate | None:
    """The last call that anybody has made, among those who have made it."""
    if len(view.ranks) > MOST_DIRECT:
        return None
    issued = max(group.issued for group in view.states.values())
    return _uneven(world, view, issued - 1) if issued else None


def _uneven(world: World, view: GroupView, seq: int) -> Candidate | None:
    calls: dict[int, Call] = {}
    for index, rank in enumerate(view.ranks):
        history = world.ranks[rank].history if rank in view.states else None
        call = history.at(view.key, seq) if history else None
        if call and op_of(call.signature.op).splits:
            calls[index] = call
    signatures = {index: call.signature for index, call in calls.items()}
    pairs = uneven_pairs(signatures)
    if not pairs:
        return None
    first, ranks, group = pairs[0], view.ranks, view.any
    where = f"{calls[first.sender].signature.op} {numbered(group, seq)}"
    dispute = split_dispute(pairs, signatures, ranks, where)
    if dispute is None:
        return None
    details = tuple(
        f"rank {ranks[pair.sender]} -> rank {ranks[pair.receiver]}: {pair.sends} sent, "
        f"{pair.expects} expected"
        for pair in pairs[:16]
    )
    times = [calls[index].issued_ns for index in (first.sender, first.receiver)]
    finding = Finding(
        kind=dispute.kind,
        message=dispute.message,
        culprits=dispute.culprits,
        victims=dispute.victims,
        group=group_evidence(group),
        seq=seq,
        ranks=at_call(world, chosen(dispute.culprits, dispute.victims), view.key, seq),
        details=details,
        observable_ns=max(times) or world.now_ns,
    )
    # Who comes later may be in further pairs, and tell which rank of this one is to blame.
    coming = len(pairs) == 1 and any(
        world.may_come(rank) and (rank not in view.states or view.states[rank].issued <= seq)
        for rank in view.ranks
    )
    return Candidate(finding, finding.observable_ns + world.limits.settle_ns if coming else 0)

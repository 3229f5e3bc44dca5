"""Do the splits of all-to-all calls fit together, pair by pair?

Every rank adds what it sends and subtracts what it expects, hashed, into a running balance. When
all members of a group have made the same number of calls, the balances add up to 0 (mod 2**64)
exactly if every pair agreed in every call. So a healthy group costs one addition a rank.
"""

from __future__ import annotations

from ...record.dispute import split_dispute, uneven_pairs
from ...record.ops import op_of
from ...record.signature import MASK
from ...record.snapshot import Call
from ...record.wording import numbered
from ..facts.evidence import at_call, chosen
from ..facts.world import GroupView, World
from ..findings import Finding, group_evidence
from ..limits import Candidate

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
    return _judge(world, view, high - 1)


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
    return _judge(world, view, issued - 1) if issued else None


def _judge(world: World, view: GroupView, seq: int) -> Candidate | None:
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

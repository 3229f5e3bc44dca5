"""Do the splits of all-to-all calls fit together, pair by pair?

Every rank adds what it sends and subtracts what it expects, hashed, into a running balance. When
all members of a group have made the same number of calls, the balances add up to 0 (mod 2**64)
exactly if every pair agreed in every call. So a healthy group costs one addition a rank.
"""

from __future__ import annotations

from ..record.signature import MASK, RULES, Rule
from ..record.snapshot import Call
from .evidence import at_call, chosen
from .findings import Finding
from .limits import Candidate
from .wording import group_evidence, numbered
from .world import GroupView, World

MOST_DIRECT = 64
"""Groups up to this size are compared pair by pair before everybody has come, too."""


def split_mismatches(world: World) -> list[Candidate]:
    """One finding per group at most: the first call with a pair that disagrees."""
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
        if call and RULES.get(call.signature.op, Rule()).splits:
            calls[index] = call
    pairs = _pairs(calls)
    if not pairs:
        return None
    sender, receiver, sends, expects = pairs[0]
    ranks = view.ranks
    culprits = tuple(sorted({ranks[i] for pair in pairs for i in pair[:2]}))
    others = tuple(rank for rank in ranks if rank not in culprits)
    group = view.any
    message = (
        f"rank {ranks[sender]} sends {sends} elements to rank {ranks[receiver]}, which expects "
        f"{expects}, in {calls[sender].signature.op} {numbered(group, seq)}"
    )
    details = tuple(
        f"rank {ranks[a]} -> rank {ranks[b]}: {have} sent, {want} expected"
        for a, b, have, want in pairs[:16]
    )
    times = [calls[index].issued_ns for index in (sender, receiver)]
    finding = Finding(
        kind="split_mismatch",
        message=message,
        culprits=culprits,
        victims=others,
        group=group_evidence(group),
        seq=seq,
        ranks=at_call(world, chosen(culprits, others), view.key, seq),
        details=details,
        observable_ns=max(times) or world.now_ns,
    )
    return Candidate(finding)


def _pairs(calls: dict[int, Call]) -> list[tuple[int, int, int, int]]:
    """(sender, receiver, elements sent, elements expected) where they differ; group ranks."""
    found = []
    for a, call in calls.items():
        for b, sends in enumerate(call.signature.sends):
            other = calls.get(b)
            if other is None or a >= len(other.signature.receives):
                continue
            expects = other.signature.receives[a]
            if sends != expects:
                found.append((a, b, sends, expects))
    return found

"""Known faults of torch and its backends, cited by a finding whose culprits made such a call.

A wrong number often comes from a call that did what the backend does, not what its page says. Only
findings about numbers cite: an assertion that failed, a NaN, replicas that differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...record.snapshot import Call, Group
from ...record.wording import at_site, call_text
from ..findings import Finding
from .world import World

MOST_CALLS = 512
MOST_RANKS = 4


@dataclass(frozen=True, slots=True)
class KnownFault:
    """`seen_in`: the versions of torch in which it was seen to happen. `backend`: "" for any."""

    backend: str
    op: str
    on_root: bool | None
    """On the root alone, on all others alone, or (None) on all."""
    seen_in: str
    text: str
    after: str = ""
    """The op of an earlier call on the same group, with the same root and tensors."""
    renumbered: bool = False
    """Only where the root has another number in the group than in the world."""


KNOWN_FAULTS = (
    KnownFault(
        backend="gloo",
        op="reduce",
        on_root=False,
        seen_in="torch 2.13 and 2.15",
        text="gloo leaves partial sums in `tensor` on ranks that are not the root of reduce; pass "
        "a copy where it is read afterwards (pytorch#76527)",
    ),
    KnownFault(
        backend="",
        op="reduce",
        on_root=True,
        seen_in="torch 2.13, not 2.15",
        text="the gradient of torch.distributed.nn's broadcast, which is this reduce if autograd "
        "has made it, is zero on a root that has one number in the group and another in the world "
        "(pytorch#130515)",
        after="broadcast",
        renumbered=True,
    ),
)


def cited(world: World, finding: Finding) -> Finding:
    """The finding with the known faults that its culprits' calls have met."""
    if not _is_about_numbers(finding):
        return finding
    lines = []
    for fault in KNOWN_FAULTS:
        met = next(_met(world, finding, fault), None)
        if met is not None:
            rank, call = met
            lines.append(
                f"known fault ({fault.seen_in}): {fault.text}; rank {rank} called "
                f"{call_text(call)}{at_site(call.site)}"
            )
    return replace(finding, details=(*finding.details, *lines)) if lines else finding


def _is_about_numbers(finding: Finding) -> bool:
    failed = finding.kind == "rank_exception" and finding.data.get("type") == "AssertionError"
    return failed or finding.about.about_numbers


def _met(world: World, finding: Finding, fault: KnownFault) -> Iterator[tuple[int, Call]]:
    for rank in finding.culprits[:MOST_RANKS]:
        record = world.ranks.get(rank)
        if record is None or record.history is None:
            continue
        calls = record.history.recent(MOST_CALLS)
        for place, call in reversed(list(enumerate(calls))):
            group = record.groups.get(call.group)
            if group is None or not _matches(fault, rank, call, group):
                continue
            if not fault.after or any(_follows(fault, call, one) for one in calls[:place]):
                yield rank, call


def _matches(fault: KnownFault, rank: int, call: Call, group: Group) -> bool:
    if call.signature.op != fault.op or fault.backend not in group.backend or len(group.ranks) < 2:
        return False
    root = call.signature.root
    if fault.renumbered and (root not in group.ranks or group.ranks.index(root) == root):
        return False
    return fault.on_root is None or (root == rank) is fault.on_root


def _follows(fault: KnownFault, call: Call, earlier: Call) -> bool:
    one, other = call.signature, earlier.signature
    alike = (one.root, one.tensors, call.group) == (other.root, other.tensors, earlier.group)
    return alike and other.op == fault.after

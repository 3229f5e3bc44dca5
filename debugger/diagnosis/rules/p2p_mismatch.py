"""Do sends and receives that meet agree on dtype and size? Also after they completed silently.

Shapes may differ: the receiver may give the same number of elements another shape. Channels into
a rank that also receives from any source are not judged: which send met which receive is unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from ...record.dispute import message_difference
from ...record.snapshot import Call, Channel
from ...record.wording import call_text
from ..facts.channels import ChannelKey, Channels
from ..facts.hash_chains import first_divergence
from ..facts.world import World
from ..findings import CallIs, Finding, RankEvidence, group_evidence
from ..limits import Candidate


def message_mismatches(world: World, channels: Channels) -> list[Candidate]:
    """The first message of each channel whose two sides differ."""
    found = []
    for key, sends in channels.sends.items():
        receives = channels.receives.get(key)
        if receives is None or not channels.strict(key):
            continue
        common = min(sends.issued, receives.issued)
        if common == 0 or (sends.issued == receives.issued and sends.chain == receives.chain):
            continue
        candidate = _compare(world, key, sends, receives, common)
        if candidate:
            found.append(candidate)
    return found


def _compare(
    world: World, key: ChannelKey, sends: Channel, receives: Channel, common: int
) -> Candidate | None:
    _, source, destination, _ = key
    divergence = first_divergence(
        _chain(world, source, sends), _chain(world, destination, receives), common
    )
    if divergence is None:
        return None
    sent = _message(world, source, sends, divergence.seq)
    received = _message(world, destination, receives, divergence.seq)
    if sent is None or received is None or _content(sent) == _content(received):
        return None
    view = world.view(source, key[0])
    finding = Finding(
        kind="p2p_mismatch",
        message=message_difference(
            sent.signature, received.signature, source, destination, divergence.seq
        ),
        culprits=(source, destination),
        group=group_evidence(view.any) if view else None,
        seq=divergence.seq,
        ranks={
            source: RankEvidence("sends", call_text(sent), sent.site, (), CallIs.ALL),
            destination: RankEvidence(
                "receives", call_text(received), received.site, (), CallIs.ALL
            ),
        },
        details=() if divergence.exact else ("older messages are no longer on record",),
        observable_ns=max(sent.issued_ns, received.issued_ns) or world.now_ns,
    )
    return Candidate(finding)


def _chain(world: World, rank: int, channel: Channel) -> Callable[[int], int | None]:
    def after(count: int) -> int | None:
        if count == channel.issued:
            return channel.chain
        call = _message(world, rank, channel, count - 1)
        return call.chain if call else None

    return after


def _message(world: World, rank: int, channel: Channel, seq: int) -> Call | None:
    history = world.ranks[rank].history
    return history.message(channel, seq) if history else None


def _content(call: Call) -> tuple[object, ...]:
    return (call.signature.dtypes, call.signature.counts)

"""Do sends and receives that meet agree on dtype and size? Also after they completed silently.

Shapes may differ: the receiver may give the same number of elements another shape. Which send met
which receive is unknown of channels into a rank that also receives from any source. There a message
counts that the receiver has refused: gloo aborts at one that is too large, distcore's backends
raise at one that differs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from ...record.dispute import message_difference
from ...record.layout import RING, CallState
from ...record.notes import raised
from ...record.signature import ANY_SOURCE, call_bytes
from ...record.snapshot import Call, Channel, GroupKey
from ..facts.call_histories import first_divergence
from ..facts.channels import ChannelKey, Channels
from ..facts.evidence import of_call
from ..facts.exceptions import last_exception
from ..facts.world import World
from ..findings import CallIs, Finding, group_evidence
from ..limits import Candidate

CALL_MISMATCH = "CallMismatch"
"""What distcore raises where two sides of a call differ."""


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
    for inbox in channels.any_source:
        candidate = _refused(world, channels, *inbox)
        if candidate:
            found.append(candidate)
    return found


def _refused(
    world: World, channels: Channels, group: GroupKey, destination: int, tag: int
) -> Candidate | None:
    """The message of which a rank that receives from any source has died: the first one that none
    of its receives takes, or that failed and is another one than it waited for."""
    error = last_exception(world, destination)
    raised_it = error is not None and raised(error).type == CALL_MISMATCH
    if not raised_it and world.ranks[destination].process.signal != signal.SIGABRT:
        return None
    receives = [
        call for call in _recent(world, destination, "recv", group) if call.signature.tag == tag
    ]
    last = receives[-1] if receives else None
    if last is None or last.signature.peer != ANY_SOURCE or last.state is CallState.COMPLETED:
        return None
    if len(receives) < channels.received_by[group, destination, tag]:
        return None  # older ones are no longer on record
    known = {_content(call) for call in receives}
    room = max(call_bytes(call.signature) for call in receives)

    def fits(call: Call) -> bool:
        if not raised_it:
            return call_bytes(call.signature) <= room
        failed = call.state is CallState.FAILED
        return _content(call) in ({_content(last)} if failed else known)

    odd = [
        (call.issued_ns, source, call)
        for source in world.ranks
        if source != destination
        for call in _recent(world, source, "send", group)
        if (call.signature.peer, call.signature.tag) == (destination, tag) and not fits(call)
    ]
    if not odd:
        return None
    _, source, sent = min(odd, key=lambda row: row[:2])
    return Candidate(_finding(world, source, sent, destination, last))


def _recent(world: World, rank: int, op: str, group: GroupKey) -> list[Call]:
    """The rank's sends or receives in a group, those that are still on record."""
    history = world.ranks[rank].history
    calls = history.recent(RING) if history else ()
    return [call for call in calls if (call.group, call.signature.op) == (group, op)]


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
    details = () if divergence.exact else ("older messages are no longer on record",)
    finding = _finding(world, source, sent, destination, received, details)
    if any(one.wait.guessed for one in world.pending(source)) and not world.knows.clock:
        # Of records that have lost their beginnings nothing tells which messages met.
        finding = replace(finding, proven=False, message=f"suspected: {finding.message}")
    return Candidate(finding, refused=received.state is CallState.FAILED)


def _finding(
    world: World,
    source: int,
    sent: Call,
    destination: int,
    received: Call,
    details: tuple[str, ...] = (),
) -> Finding:
    view = world.view(source, sent.group)
    return Finding(
        kind="p2p_mismatch",
        message=message_difference(
            sent.signature, received.signature, source, destination, sent.seq
        ),
        culprits=(source, destination),
        group=group_evidence(view.any) if view else None,
        seq=sent.seq,
        ranks={
            source: of_call("sends", sent, sent.site, CallIs.ALL),
            destination: of_call("receives", received, received.site, CallIs.ALL),
        },
        details=details,
        observable_ns=max(sent.issued_ns, received.issued_ns) or world.now_ns,
    )


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

"""What ranks had begun and not finished when they ended, and whether its other end has come."""

from __future__ import annotations

from collections.abc import Iterator

from ...record.layout import Activity, CallState
from ...record.notes import ExceptionNote
from ...record.signature import ANY_SOURCE
from ...record.snapshot import Call, Wait
from .channels import Channels
from .world import Pending, World

UNFINISHED = frozenset({CallState.ISSUED, CallState.STARTED, CallState.FAILED})


def has_failed(world: World, rank: int) -> bool:
    raised = world.notes(rank, ExceptionNote)
    return bool(raised) or (world.ended(rank) and not world.finished(rank))


def as_pending(world: World, rank: int, call: Call) -> Pending:
    waits = world.ranks[rank].waits
    wait = next((wait for wait in waits if wait.call == call.number), None)
    if wait is None:
        since = call.completed_ns or call.issued_ns
        wait = Wait(0, Activity.IN_CALL, 0, since, call.number, site=call.site)
    return Pending(rank, wait, call)


def failed_calls(world: World) -> Iterator[Pending]:
    """The call in which a rank that has ended with an error stood, or which it had seen fail."""
    for number in world.eventful:
        rank = world.ranks[number]
        if not has_failed(world, number) or rank.history is None or not rank.calls:
            continue
        call = rank.history.call(rank.calls - 1)
        if call is not None and call.state in UNFINISHED:
            yield as_pending(world, number, call)


def posted(channels: Channels, rank: int, call: Call) -> bool:
    key = channels.key_of(rank, call)
    if not channels.strict(key):
        # A receive from any source may be the other end of this send, unless fewer were posted than
        # messages were sent to that rank: then one of these is lost, and this one has not arrived.
        return call.signature.op != "send" or not channels.one_too_many(key)
    other = channels.received(key) if call.signature.op == "send" else channels.sent(key)
    return other > call.seq


def surely_posted(channels: Channels, rank: int, call: Call) -> bool:
    """Whether the partner of this send or receive has made its own."""
    if call.signature.peer == ANY_SOURCE or not channels.strict(channels.key_of(rank, call)):
        return False
    return posted(channels, rank, call)

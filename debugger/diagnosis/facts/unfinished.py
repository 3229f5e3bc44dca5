"""Calls may be unfinished when their rank ends: these functions find them, and whether the other
end has come."""

from __future__ import annotations

from collections.abc import Iterator

from ...record.layout import Activity, CallState
from ...record.notes import ExceptionNote, UnfinishedNote
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


def abandoned_calls(world: World, channels: Channels) -> Iterator[Pending]:
    """Calls on a GPU that a rank has ended well without: it had its streams wait for them, and
    nobody asked for what came of them. Messages only where the other end was never posted: what two
    that end together have on its way may well arrive."""
    for number in world.eventful:
        rank = world.ranks[number]
        if rank.history is None or not world.finished(number):
            continue
        for note in world.notes(number, UnfinishedNote):
            told = UnfinishedNote.read(note.data)
            for at in told.numbers if told is not None else ():
                call = rank.history.call(at)
                if call is None or call.state not in UNFINISHED:
                    continue
                if call.signature.peer is None or not posted(channels, number, call):
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

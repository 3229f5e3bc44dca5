"""An uncaught exception may say that a rank lost another one, or ran out of time.

distcore's errors name the connection at which a call failed (`link`: global ranks of the sender and
the receiver). Of connections that broke between ranks that live both ends are named, for neither is
to blame alone.

The calls that a rank leaves unfinished when it ends are found here, too, and whether the other end
of each has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ...record.layout import Activity, CallState
from ...record.notes import (
    DestroyedNote,
    ExceptionNote,
    ThreadExceptionNote,
    UnfinishedNote,
    raised,
)
from ...record.snapshot import Call, Note, Wait
from ...record.wording import ranks_text
from ..limits import ANOTHER_NS, SECOND_NS
from .channels import Channels
from .world import Pending, World

TIMED_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)


def last_exception(world: World, rank: int) -> Note | None:
    """The uncaught exception that ended the rank, if one did."""
    notes = world.notes(rank, ExceptionNote)
    return notes[-1] if notes else None


def timed_out(note: Note) -> bool:
    """The exception says that a time limit ran out."""
    types = (raised(note).type, note.message)
    return any("DeadlineExceeded" in text for text in types) or bool(TIMED_OUT.search(note.message))


def own_timeout(world: World, rank: int, call: Call | None, failed_ns: int) -> str:
    """`the program's own timeout of 60 s`: that of the call's group, if it is the one that ran out
    by then; a handle may have been waited for with another one."""
    group = world.ranks[rank].groups.get(call.group) if call is not None else None
    if call is not None and group is not None and group.timeout_s:
        late_s = (failed_ns - call.issued_ns) / SECOND_NS - group.timeout_s
        if -0.1 < late_s < 5.0:  # seen by another clock, or on a busy host
            return f"the program's own timeout of {group.timeout_s:g} s"
    return "the program's own timeout"


COMMUNICATION = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|broken pipe|timed? ?out|timeout|"
    r"gloo|nccl|recvBytes|sendBytes|socket|DistNetworkError|DistStoreError|DistBackendError|"
    r"remote process|all connection|abort",
    re.IGNORECASE,
)


def is_communication_error(note: Note) -> bool:
    """The exception is what a rank gets when another one fails, or is late."""
    error = raised(note)
    if error.communication is not None:
        return error.communication
    return COMMUNICATION.search(f"{error.type} {note.message}") is not None


def gave_up(world: World, rank: int) -> bool:
    """Returns whether the rank, too, has waited, until its own time limit ran out."""
    note = last_exception(world, rank)
    return note is not None and timed_out(note)


def last_to_come(waiting: Mapping[int, Wait]) -> Wait:
    """The wait of the rank that began to join last. The limits count from there: as long as ranks
    come, a large world is being started, and those that are to come are not late."""
    return max(waiting.values(), key=lambda wait: wait.since_ns)


Link = tuple[int, int]


def link_of(world: World, note: Note) -> Link | None:
    """The connection that an exception names, unless one of its ends was dead already, or is
    nowhere to be seen."""
    link = raised(note).link
    return link if link is not None and all(_lived(world, rank, note) for rank in link) else None


def _lived(world: World, rank: int, note: Note) -> bool:
    record = world.ranks.get(rank)
    if record is None or world.finished(rank):
        return False
    last = last_exception(world, rank)
    if last is not None and raised(last).communication:
        return True  # what it ended by is no cause of its own
    ended_ns = record.process.ended_ns
    return ended_ns is None or ended_ns > note.time_ns


def broken(note: Note, link: Link) -> str:
    """Describes, for a finding's message, how the connection failed."""
    sender, receiver = link
    if raised(note).type == "CorruptFrame":
        return f"the connection from rank {sender} to rank {receiver} does not bring what was sent"
    both = ranks_text(sorted(link))
    if raised(note).type == "DeadlineExceeded":
        return f"nothing comes through between {both}, though both processes were alive"
    return f"the connection between {both} broke, though both processes were alive"


MOST_UNFINISHED = 64
"""So many of the last calls of a rank that failed are looked at: it may have been in several."""
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


def calls_of_dead_threads(world: World) -> Iterator[Pending]:
    """The collective in which a thread lost a rank, which ended that thread while its own rank goes
    on. Nothing is said of a thread that its rank leaves behind: of a daemon, nor where the rank,
    too, destroys a group or ends a moment later."""
    for number in world.eventful:
        rank = world.ranks[number]
        left = [note.time_ns for note in world.notes(number, DestroyedNote)]
        goes_on_ns = min(*left, rank.exiting_ns or world.now_ns, world.now_ns) - ANOTHER_NS
        for note in world.notes(number, ThreadExceptionNote):
            slot, lasts = raised(note).thread_slot, raised(note).daemon is False
            if rank.history is None or not (lasts and is_communication_error(note)):
                continue
            recent = rank.history.recent(MOST_UNFINISHED) if note.time_ns <= goes_on_ns else ()
            made = [one for one in recent if one.thread == slot and one.issued_ns < note.time_ns]
            if made and made[-1].state in UNFINISHED and made[-1].signature.peer is None:
                yield as_pending(world, number, made[-1])


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
    """Whether the partner of this send or receive may have made its own."""
    return channels.posted(rank, call) is not False


def surely_posted(channels: Channels, rank: int, call: Call) -> bool:
    """Whether the partner of this send or receive has made its own."""
    return channels.posted(rank, call) is True

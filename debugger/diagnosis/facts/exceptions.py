"""An uncaught exception may say that a rank lost another one, or ran out of time.

distcore's errors name the connection at which a call failed (`link`: global ranks of the sender and
the receiver). Of connections that broke between ranks that live both ends are named, for neither is
to blame alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...record.notes import ExceptionNote, raised
from ...record.snapshot import Call, Note, Wait
from ...record.wording import ranks_text
from ..limits import SECOND_NS
from .world import World

SEEN_EARLY_S, SEEN_LATE_S = 0.1, 5.0
"""How far its failure may be from the end of a call's timeout: of another clock, or a busy host."""

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
        if -SEEN_EARLY_S < late_s < SEEN_LATE_S:
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

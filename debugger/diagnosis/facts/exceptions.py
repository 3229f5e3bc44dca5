"""An uncaught exception may say that a rank lost another one, or ran out of time."""

from __future__ import annotations

import re

from ...record.notes import ExceptionNote, raised
from ...record.snapshot import Call, Note
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

"""What an uncaught exception says: that a rank lost another one, or ran out of time."""

from __future__ import annotations

import re

from ...record.notes import ExceptionNote, raised
from ...record.snapshot import Note
from .world import World

TIMED_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)


def last_exception(world: World, rank: int) -> Note | None:
    """The uncaught exception that ended the rank, if one did."""
    notes = world.notes(rank, ExceptionNote)
    return notes[-1] if notes else None


def timed_out(note: Note) -> bool:
    """The exception says that a time limit ran out."""
    types = (raised(note).type, note.message)
    return any("DeadlineExceeded" in text for text in types) or bool(TIMED_OUT.search(note.message))


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

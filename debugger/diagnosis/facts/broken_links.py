"""Connections that broke between ranks that live: both ends are named, neither is to blame alone.

distcore's errors name the connection at which a call failed (`link`: global ranks of the sender and
the receiver).
"""

from __future__ import annotations

from ...record.snapshot import Note
from ...record.wording import ranks_text
from .exceptions import last_exception
from .world import World

Link = tuple[int, int]


def link_of(world: World, note: Note) -> Link | None:
    """The connection that an exception names, unless one of its ends was dead already, or is
    nowhere to be seen."""
    found = note.data.get("link")
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    sender, receiver = found
    if not all(isinstance(rank, int) and _lived(world, rank, note) for rank in (sender, receiver)):
        return None
    return sender, receiver


def _lived(world: World, rank: int, note: Note) -> bool:
    record = world.ranks.get(rank)
    if record is None or world.finished(rank):
        return False
    last = last_exception(world, rank)
    if last is not None and last.data.get("communication") is True:
        return True  # what it ended by is no cause of its own
    ended_ns = record.process.ended_ns
    return ended_ns is None or ended_ns > note.time_ns


def broken(note: Note, link: Link) -> str:
    """What became of the connection, for a finding's message."""
    sender, receiver = link
    if note.data.get("type") == "CorruptFrame":
        return f"the connection from rank {sender} to rank {receiver} does not bring what was sent"
    both = ranks_text(sorted(link))
    if note.data.get("type") == "DeadlineExceeded":
        return f"nothing comes through between {both}, though both processes were alive"
    return f"the connection between {both} broke, though both processes were alive"

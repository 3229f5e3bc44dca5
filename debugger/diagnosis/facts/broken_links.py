"""Connections that broke between ranks that live: both ends are named, neither is to blame alone.

distcore's errors name the connection at which a call failed (`link`: global ranks of the sender and
the receiver).
"""

from __future__ import annotations

from ...record.notes import raised
from ...record.snapshot import Note
from ...record.wording import ranks_text
from .exceptions import last_exception
from .world import World

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

"""Exceptions that have left a call of a rank's, and that the rank has caught: what it does after
that may be the consequence, so that each later finding about the rank tells of the last one."""

from __future__ import annotations

from dataclasses import replace

from ...record.notes import LeftCallNote, RaisedNote
from ...record.snapshot import Note
from ...record.wording import at_site, printable, ranks_text
from ..findings import Finding
from .world import World

_RAISED = tuple(kind.KIND for kind in RaisedNote.__subclasses__())
MOST_LINES = 4


def with_caught(world: World, finding: Finding) -> Finding:
    """The finding, with what its culprits, and the others in it, have caught before it."""
    found: dict[str, list[int]] = {}
    for rank in dict.fromkeys((*finding.culprits, *finding.ranks)):
        note = _last_caught(world, rank, finding.observable_ns)
        if note and (told := LeftCallNote.read(note.data)):
            said = printable(note.message.removeprefix(told.type).removeprefix(": "), 200)
            text = f"raised {printable(told.type, 80)} in {printable(told.function, 80)}"
            text += f"{at_site(note.site)} before this, and went on{f' ({said})' if said else ''}"
            found.setdefault(text, []).append(rank)
    lines = [f"{ranks_text(ranks)} {text}" for text, ranks in found.items()][:MOST_LINES]
    return replace(finding, details=(*finding.details, *lines)) if lines else finding


def _last_caught(world: World, rank: int, before_ns: int) -> Note | None:
    """None where the rank's end, or what it raised later, is that same exception."""
    left = world.notes(rank, LeftCallNote) if rank in world.ranks else []
    note = next((note for note in reversed(left) if note.time_ns <= before_ns), None)
    ends = [one.message for one in world.ranks[rank].notes if one.kind in _RAISED] if note else []
    return None if note and any(note.message in text for text in ends) else note

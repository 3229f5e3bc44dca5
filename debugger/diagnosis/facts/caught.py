"""Exceptions that have left a call of a rank's, and that the rank has caught: what it does after
that may be the consequence, so that each later finding about the rank tells of the last one."""

from __future__ import annotations

from dataclasses import replace

from ...record.layout import Phase
from ...record.notes import LeftCallNote, RaisedNote
from ...record.snapshot import Note, Rank
from ...record.wording import at_site, printable, ranks_text
from ..findings import Finding
from ..limits import SECOND_NS
from ..story import step
from .world import World

_RAISED = tuple(kind.KIND for kind in RaisedNote.__subclasses__())
MOST_LINES = 4


@step("caught")
def with_caught(world: World, finding: Finding) -> Finding:
    """The finding, with what its culprits, and the others in it, have caught before it."""
    found: dict[str, list[int]] = {}
    for rank in dict.fromkeys((*finding.culprits, *finding.ranks)):
        left = world.notes(rank, LeftCallNote) if rank in world.ranks else []
        left = [note for note in left if note.time_ns <= finding.observable_ns]
        told = LeftCallNote.read(left[-1].data) if left else None
        if told and _went_on(world.ranks[rank], left[-1], told.call, finding.observable_ns):
            said = printable(left[-1].message.removeprefix(told.type).removeprefix(": "), 200)
            text = f"raised {printable(told.type, 80)} in {printable(told.function, 80)}"
            text += f"{at_site(left[-1].site)} before this, and went on{said and f' ({said})'}"
            found.setdefault(text, []).append(rank)
    lines = [f"{ranks_text(ranks)} {text}" for text, ranks in found.items()][:MOST_LINES]
    return replace(finding, details=(*finding.details, *lines)) if lines else finding


def _went_on(rank: Rank, note: Note, call: int, now_ns: int) -> bool:
    """Whether the rank has made another call since, or runs for so long that the exception cannot
    be on its way out; and neither ended, nor was cleaning up, for that same exception."""
    if rank.calls <= call and (now_ns - note.time_ns < SECOND_NS or rank.phase >= Phase.EXITING):
        return False
    ends = (one.message for one in rank.notes if one.kind in _RAISED)
    return not any(note.message in text for text in ends)

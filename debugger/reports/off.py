"""The parts of the watching that were off, and why: so that nobody takes silence for health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..record.notes import OffNote, off_notes
from ..record.safe_text import clean
from ..record.snapshot import Note, Rank
from ..record.wording import ranks_text


def of_ranks(
    ranks: Mapping[int, Rank], unreadable: Mapping[int, Note] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Returns a row for each part and reason: `part`, `why` (a sentence), `ranks`. `unreadable`:
    what is said of ranks whose records cannot be read."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, note, off in _notes(ranks, unreadable):
        at = found.setdefault((clean(off.part), clean(note.message)), [])
        if number not in at:
            at.append(number)
    return [{"part": part, "why": why, "ranks": at} for (part, why), at in found.items()]


def news(
    ranks: Mapping[int, Rank],
    announced: dict[str, float],
    unreadable: Mapping[int, Note] = MappingProxyType({}),
) -> list[str]:
    """The sentences that are not in `announced` yet, which gets them. Not those that a rank has
    said."""
    fresh = []
    for _, note, off in _notes(ranks, unreadable):
        why = clean(note.message)
        if not off.said and why not in announced:
            announced[why] = note.time_ns / 1e9
            fresh.append(why)
    return fresh


def _notes(
    ranks: Mapping[int, Rank], unreadable: Mapping[int, Note]
) -> Iterator[tuple[int, Note, OffNote]]:
    """Yields what each rank, or others for it, say to be off."""
    notes: dict[int, Sequence[Note]] = {n: rank.notes for n, rank in sorted(ranks.items())}
    notes |= {n: (note,) for n, note in unreadable.items() if n not in ranks}
    for number, given in notes.items():
        for note in off_notes(given):
            told = OffNote.read(note.data)
            if told is not None:
                yield number, note, told


def sentences(document: Mapping[str, Any]) -> list[str]:
    """The same for people; the ranks are named where they are not all. Without ranks it is a part
    of the supervisor's: a rule or a sampler that failed."""
    everyone = {int(rank) for rank in document["ranks"]}
    found = []
    for row in document.get("off", ()):
        ranks = row.get("ranks")
        if ranks is None:
            found.append(f"{row['part']}: {row['why']}")
        else:
            whole = everyone <= set(ranks)
            found.append(row["why"] if whole else f"{row['why']} ({ranks_text(ranks)})")
    return found

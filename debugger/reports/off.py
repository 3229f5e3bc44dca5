"""Which parts of the watching were off, and why: so that nobody takes silence for health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..record.notes import OffNote, off_notes
from ..record.sanitize import clean
from ..record.snapshot import Rank
from ..record.wording import ranks_text


def of_ranks(ranks: Mapping[int, Rank]) -> list[dict[str, Any]]:
    """One row for each part and reason: `part`, `why` (a sentence), `ranks`."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, rank in sorted(ranks.items()):
        for note in off_notes(rank.notes):
            told = OffNote.read(note.data)
            if told is not None:
                at = found.setdefault((clean(told.part), clean(note.message)), [])
                if number not in at:
                    at.append(number)
    return [{"part": part, "why": why, "ranks": at} for (part, why), at in found.items()]


def news(ranks: Mapping[int, Rank], told: dict[str, float]) -> list[str]:
    """The sentences that nobody was told yet: `told` gets them. Not those that a rank has said."""
    fresh = []
    for rank in ranks.values():
        for note in off_notes(rank.notes):
            why = clean(note.message)
            off = OffNote.read(note.data)
            if off is not None and not off.said and why not in told:
                told[why] = note.time_ns / 1e9
                fresh.append(why)
    return fresh


def sentences(document: Mapping[str, Any]) -> list[str]:
    """The same for people; the ranks are named where they are not all. Without ranks it is a part
    of the supervisor's: a rule or a sampler that failed."""
    total = len(document["ranks"])
    found = []
    for row in document.get("off", ()):
        ranks = row.get("ranks")
        if ranks is None:
            found.append(f"{row['part']}: {row['why']}")
        else:
            found.append(
                row["why"] if len(ranks) >= total else f"{row['why']} ({ranks_text(ranks)})"
            )
    return found

"""The lines of calls, replayed from a log of surprises."""

from __future__ import annotations

from collections.abc import Iterator

from distdebug.record.lines import place_at
from distdebug.record.snapshot import LineLog, Place


def places(log: LineLog, end: int) -> Iterator[Place | None]:
    """Yields the place of each call from `log.first` to before `end`."""
    return (place_at(log.surprises, seq) for seq in range(log.first, end))

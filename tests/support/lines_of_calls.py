"""The lines of calls, replayed from a log of surprises."""

from __future__ import annotations

from collections.abc import Iterator

from distdebug.record.lines import place_at
from distdebug.record.snapshot import LineLog, Place


def places(log: LineLog, end: int) -> Iterator[Place | None]:
    """Yields the place of each call from the first one that the log has to before `end`."""
    first = log.surprises[0].seq if log.surprises else end
    return (place_at(log.surprises, seq) for seq in range(first, end))

"""Finds the training loop in a rank's calls: what repeats, and how often.

Nobody has to say where a step begins, and a record that has forgotten its first calls has steps
all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MOST_PERIODS = 48
"""So many lengths of a step are tried: those by which most calls come again."""


@dataclass(frozen=True, slots=True)
class Loop:
    """From the call at `start` on, `period` calls come `times` times."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """Where it is over."""
        return self.start + self.period * self.times


def loop_of(calls: Sequence[Hashable]) -> Loop | None:
    """The repetition that covers most of the calls, of several the one of the shortest period;
    None where nothing comes twice in a row, or that is less than half of it all."""
    numbers: dict[Hashable, int] = {}
    row = [numbers.setdefault(call, len(numbers)) for call in calls]
    best: Loop | None = None
    for period in _periods(row):
        found = _longest(row, period)
        if found is None:
            continue
        if best is None or (found.times * period, -period) > (
            best.times * best.period,
            -best.period,
        ):
            best = found
    if best is None or best.times * best.period * 2 < len(row):
        return None
    return best


def _periods(row: Sequence[int]) -> list[int]:
    """Distances at which calls come again, those that cover most first."""
    last: dict[int, int] = {}
    covered: Counter[int] = Counter()
    for place, call in enumerate(row):
        if call in last:
            covered[place - last[call]] += place - last[call]
        last[call] = place
    return [period for period, _ in covered.most_common(MOST_PERIODS)]


def _longest(row: Sequence[int], period: int) -> Loop | None:
    """The first of the longest runs in which each call comes again after `period` others."""
    best_start = best_length = start = 0
    for place in range(len(row) - period):
        if row[place] != row[place + period]:
            start = place + 1
        elif place + 1 - start > best_length:
            best_start, best_length = start, place + 1 - start
    times = best_length // period + 1
    return Loop(best_start, period, times) if times > 1 else None

"""The ranks of a group as a flight record writes them: a few numbers, however many ranks it has.

Each of 16,384 ranks describes the group of all; as a list that is 100 KB in each record, and a
gigabyte for whoever reads them all, or gets them from other nodes. Groups are runs of ranks
with one stride, or a few of them, so that is what is written: `{"runs": [[first, count, step]]}`.
Small groups, and those that are no such runs, stay plain lists.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .limits import MOST_RANKS
from .safe_files import whole

FEW = 64
"""Up to so many ranks are written one by one."""
_SHORTER = 8
"""A list stays one unless it takes so many times as much."""
SPREAD_BYTES = 40
"""The memory for each rank of a run that is read."""


def packed(ranks: Sequence[int]) -> Any:
    """Returns the ranks for JSON, in the order that they have."""
    if len(ranks) <= FEW:
        return list(ranks)
    runs: list[list[int]] = []
    for rank in ranks:
        last = runs[-1] if runs else None
        if last is None:
            runs.append([rank, 1, 1])
        elif last[1] == 1:
            last[1:] = [2, rank - last[0]]
        elif rank == last[0] + last[1] * last[2]:
            last[1] += 1
        else:
            runs.append([rank, 1, 1])
    if 3 * len(runs) * _SHORTER > len(ranks):
        return list(ranks)
    return {"runs": runs}


def unpacked(value: Any) -> tuple[int, ...]:
    """The opposite; groups of the same ranks share one tuple. Raises ValueError, TypeError."""
    if isinstance(value, dict):
        return _spread(tuple((whole(a), whole(n), whole(step)) for a, n, step in value["runs"]))
    if not isinstance(value, list) or len(value) > MOST_RANKS:
        raise ValueError("not a list of ranks")
    ranks = tuple(whole(rank) for rank in value)
    return ranks if len(ranks) <= FEW else _shared(ranks)


def spread_bytes(value: Any) -> int:
    """Returns about how much memory `unpacked` takes beyond what the text says. Raises as it
    does."""
    if not isinstance(value, dict):
        return 0
    count = sum(whole(row[1]) for row in value["runs"])
    if not 0 <= count <= MOST_RANKS:
        raise ValueError("more ranks than any run has")
    return SPREAD_BYTES * count


@functools.lru_cache(maxsize=1024)
def _spread(runs: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    if any(count < 1 for _, count, _ in runs) or sum(count for _, count, _ in runs) > MOST_RANKS:
        raise ValueError("not runs of ranks")
    ranks = tuple(
        rank
        for first, count, step in runs
        for rank in (first + step * index for index in range(count))
    )
    return _shared(tuple(whole(rank) for rank in ranks))


@functools.lru_cache(maxsize=1024)
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    return ranks

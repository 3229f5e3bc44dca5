"""The ranks of a group in a few numbers, read back in their order, and shared."""

from __future__ import annotations

import json
import random

import pytest

from distdebug.record import rank_runs
from distdebug.record.limits import MOST_RANKS

MESH = tuple(rank for first in (3, 4096) for rank in range(first, first + 2048, 8))
SHUFFLED = tuple(random.Random(7).sample(range(5000), 500))


@pytest.mark.parametrize(
    "ranks",
    [
        (),
        (5,),
        (4, 2, 9),
        tuple(range(64)),
        tuple(range(65)),
        tuple(range(16384)),
        tuple(range(7, 16384, 16)),
        tuple(reversed(range(300))),
        MESH,
        SHUFFLED,
    ],
)
def test_they_come_back_in_their_order(ranks: tuple[int, ...]) -> None:
    text = json.dumps(rank_runs.packed(ranks))
    assert rank_runs.unpacked(json.loads(text)) == ranks
    if len(ranks) > rank_runs.FEW and ranks is not SHUFFLED:
        assert len(text) < 60


def test_few_ranks_and_ranks_without_order_stay_lists() -> None:
    assert rank_runs.packed(range(64)) == list(range(64))
    assert rank_runs.packed(SHUFFLED) == list(SHUFFLED)


def test_groups_of_the_same_ranks_share_them() -> None:
    one, other = (rank_runs.packed(tuple(range(16384))) for _ in range(2))
    assert rank_runs.unpacked(one) is rank_runs.unpacked(other)
    assert rank_runs.unpacked(list(SHUFFLED)) is rank_runs.unpacked(list(SHUFFLED))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"runs": 3},
        {"runs": [[0, MOST_RANKS + 1, 1]]},
        {"runs": [[0, MOST_RANKS, 1], [0, 1, 1]]},
        {"runs": [[0, -1, 1]]},
        {"runs": [[0, 2]]},
        {"runs": [[0, 2, 1 << 63]]},
        "0-7",
    ],
)
def test_what_is_no_run_of_ranks(value: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        rank_runs.unpacked(value)


def test_a_short_text_counts_as_what_it_stands_for() -> None:
    """A record of a megabyte may else stand for gigabytes of ranks."""
    assert rank_runs.spread_bytes({"runs": [[0, 100_000, 1]]}) == 100_000 * rank_runs.SPREAD_BYTES
    assert rank_runs.spread_bytes([1, 2]) == 0

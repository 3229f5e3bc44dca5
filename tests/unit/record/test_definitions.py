"""The ranks of a group in a few numbers, read back in their order, and shared."""

from __future__ import annotations

import json
import random

import pytest

from distdebug.record import definitions, layout
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
    text = json.dumps(layout.packed_ranks(ranks))
    assert definitions.unpacked_ranks(json.loads(text)) == ranks
    if len(ranks) > layout.FEW_RANKS and ranks is not SHUFFLED:
        assert len(text) < 60


def test_few_ranks_and_ranks_without_order_stay_lists() -> None:
    assert layout.packed_ranks(range(64)) == list(range(64))
    assert layout.packed_ranks(SHUFFLED) == list(SHUFFLED)


def test_groups_of_the_same_ranks_share_them() -> None:
    one, other = (layout.packed_ranks(tuple(range(16384))) for _ in range(2))
    assert definitions.unpacked_ranks(one) is definitions.unpacked_ranks(other)
    assert definitions.unpacked_ranks(list(SHUFFLED)) is definitions.unpacked_ranks(list(SHUFFLED))


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
        definitions.unpacked_ranks(value)


def test_a_short_text_counts_as_what_it_stands_for() -> None:
    """A record of a megabyte may else stand for gigabytes of ranks."""
    assert (
        definitions.spread_bytes({"runs": [[0, 100_000, 1]]}) == 100_000 * definitions.SPREAD_BYTES
    )
    assert definitions.spread_bytes([1, 2]) == 0

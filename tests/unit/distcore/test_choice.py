"""The table of algorithms, and the user's wish instead of it."""

from __future__ import annotations

import pytest

from distcore.algorithms import choice
from distcore.algorithms.choice import choice_from


def test_every_op_and_size_has_a_row_that_is_known() -> None:
    for op, names in choice.ALGORITHMS.items():
        for ranks in (2, 3, 4, 5, 7, 8, 12, 16, 17, 64, 1000):
            for size_bytes in (0, 1, 4096, 1 << 16, 1 << 20, 1 << 26, 1 << 40):
                for on_one_host in (False, True):
                    name = choice.DEFAULT.of(op, size_bytes, ranks, on_one_host)
                    assert name in names
                    assert on_one_host or name != choice.NEEDS_BOARD
                    if (op, name) in choice.POWERS_OF_TWO_ONLY:
                        assert not ranks & (ranks - 1)
    assert {(row.op, row.algorithm) for row in choice.TABLE} <= {
        (op, name) for op, names in choice.ALGORITHMS.items() for name in names
    }
    assert all(row.most_bytes is None for row in choice.TABLE if row.op == "all_to_all")


def test_a_wish_goes_before_the_table() -> None:
    wish = choice_from("ring, broadcast:tree")
    assert wish.of("all_reduce", 4, 2) == "ring"
    assert wish.of("broadcast", 1 << 30, 8) == "tree"
    assert wish.of("gather", 4, 2) == choice.DEFAULT.of("gather", 4, 2)
    assert choice_from("broadcast:tree,ring") == wish, "the entry for an op counts, wherever it is"
    board = choice_from("board")
    assert board.of("all_reduce", 4, 2, board=True) == "board"
    assert board.of("all_reduce", 4, 2) == choice.DEFAULT.of("all_reduce", 4, 2), "it has none"
    assert choice_from("") == choice_from(" , ") == choice.DEFAULT


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rings", ["'rings' is no algorithm", "ring, tree"]),
        ("all_reduce:tree", ["all_reduce has no algorithm 'tree'", "halving, hub, ring, two_step"]),
        ("allreduce:ring", ["'allreduce' is no op", "all_reduce, reduce, broadcast"]),
    ],
)
def test_an_unknown_wish_is_refused(setting: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        choice_from(setting)
    for part in (f"DISTCORE_ALGORITHM={setting!r}", *words):
        assert part in str(caught.value)

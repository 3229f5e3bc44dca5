"""What the view of stacks shows of branches that part where nobody looks: in torch, or in ours."""

from __future__ import annotations

from distdebug.tui.picture import StackNode
from distdebug.tui.screens.stacks import _draw
from distdebug.tui.text import Line

RANKS = (0, 1, 2)


def shown(node: StackNode) -> list[str]:
    lines: list[Line] = []
    _draw(node, 1, RANKS, False, lines)
    return ["".join(text for text, _ in one).strip() for one in lines]


def leaf(rank: int, frame: str, *notes: str) -> StackNode:
    return StackNode((rank,), (frame,), (True,), notes, ())


def test_ranks_at_one_line_of_the_program_are_not_told_apart_below_it() -> None:
    below = (leaf(1, "Waits.sliced (waiting.py:93)"), leaf(2, "Waits.sliced (waiting.py:95)"))
    assert shown(StackNode(RANKS, ("train (slow.py:4)",), (False,), (), below)) == [
        "train (slow.py:4)"
    ]


def test_what_is_noted_of_one_of_them_is_shown() -> None:
    below = (leaf(1, "wait (a.py:1)", "holds the GIL"),)
    assert shown(StackNode(RANKS, ("train (slow.py:4)",), (False,), (), below)) == [
        "train (slow.py:4)",
        "wait (a.py:1)  [holds the GIL]  ◂ rank 1",
    ]


def test_a_rank_with_nothing_of_the_program_is_there_all_the_same() -> None:
    assert shown(leaf(1, "run (runpy.py:9)")) == ["run (runpy.py:9)  ◂ rank 1"]

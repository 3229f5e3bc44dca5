"""What a narrow terminal has no room for is wrapped, or made shorter where it says least."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fixtures import recorded
from tui.feed import Feed
from tui.picture import Focus, Picture
from tui.screens.base import Chosen
from tui.screens.collectives import Collectives
from tui.screens.waits import WaitsView
from tui.text import Line, fold, line, plain, width_of, within

from .driver import a_year_later, opened

ROW = line(("rank 0 ", "title"), ("in all_reduce(sum)", "bad"), ("  ", "dim"))
PLACED = (*ROW, ("a_program.py:1234 in step", "place"))


def drawn(recording: str, view: type[WaitsView | Collectives], scratch: Path) -> list[Line]:
    """All lines of that screen of a recorded run, at the smallest size."""
    run = recorded.unpack(recording, scratch / recording)
    picture = _looked(run.path, Focus(view.name))
    body = view(Chosen()).body(picture, 79, 24)
    return [*body.top, *body.lines, *body.below]


def _looked(path: Path, focus: Focus) -> Picture:
    return Feed(path, lambda _: None, a_year_later).look(focus)


@pytest.mark.parametrize("width", range(12, 60))
def test_a_line_within_a_width_loses_nothing_but_a_place_its_function(width: int) -> None:
    rows = within(PLACED, width)
    assert all(width_of(row) <= width for row in rows)
    text = "".join(map(plain, rows)).replace(" ", "")
    if len(rows) > 1:
        assert text == plain(PLACED).replace(" ", "")
    assert "rank0inall_reduce(sum)" in text
    assert text.endswith(("1234", "instep"))


def test_a_place_is_made_shorter_before_the_line_is_wrapped() -> None:
    assert [len(within(PLACED, width)) for width in (52, 44, 39, 38)] == [1, 1, 1, 2]
    assert plain(within(PLACED, 44)[0]).endswith(")  a_program.py:1234")
    assert plain(within(PLACED, 39)[0]).endswith(")  …ram.py:1234")
    assert [plain(row).rstrip() for row in within(PLACED, 38)] == [
        "rank 0 in all_reduce(sum)",
        "    a_program.py:1234 in step",
    ]


def test_folded_pieces_keep_their_tones() -> None:
    row = line("  ", ("one two  ", "bad"), ("日本語日本語", "dim"), " x")
    assert fold(row, 14) == [
        (("  ", ""), ("one two ", "bad")),
        (("      ", ""), ("日本語日", "dim")),
        (("      ", ""), ("本語", "dim"), (" x", "")),
    ]
    for width in range(14, 40):
        rows = fold(row, width)
        assert all(width_of(one) <= width for one in rows)
        letters = [(c, tone) for one in rows for text, tone in one for c in text if c != " "]
        assert letters == [(c, tone) for text, tone in row for c in text if c != " "]


def test_waits_never_lose_a_line_number(tmp_path: Path) -> None:
    rows = drawn("deadlock", WaitsView, tmp_path)
    assert all(width_of(row) <= 79 for row in rows)
    text = " ".join(plain(row).strip() for row in rows)
    assert "in ring_shift waits for rank 1" in text
    assert text.count("deadlock_ring.py:12") == 3


def test_a_live_deadlock_names_every_line(tmp_path: Path) -> None:
    run = recorded.unpack("deadlock-live", tmp_path / "run")

    async def check() -> None:
        async with opened(run.path, lambda: run.end_ns, (80, 24)) as driver:
            await driver.press("w")
            await driver.looked_again()
            rows = [row for row in driver.text.splitlines() if " ms in all_reduce" in row]
            assert [row.endswith("ups.py:20") for row in rows] == [True] * 4

    held = run.hold()
    try:
        asyncio.run(check())
    finally:
        os.close(held)


def test_the_heading_of_a_collective_is_whole(tmp_path: Path) -> None:
    rows = drawn("mismatch", Collectives, tmp_path)
    assert all(width_of(row) <= 79 for row in rows)
    text = "\n".join(map(plain, rows))
    assert "rank 2 last, this rank" in text
    assert "after the first" in text


def test_where_there_are_no_collectives_the_way_on_is_told_in_full(tmp_path: Path) -> None:
    rows = drawn("p2p", Collectives, tmp_path)
    assert all(width_of(row) <= 79 for row in rows)
    assert "the screens Rank and Waits" in " ".join(map(plain, rows))

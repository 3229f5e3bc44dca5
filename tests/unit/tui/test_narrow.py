"""What a narrow terminal has no room for is wrapped, or made shorter where it says least."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from distdebug.tui.feed import Feed
from distdebug.tui.picture import (
    Focus,
    LogLine,
    Picture,
    RankDetail,
    StackNode,
    Stacks,
    Stage,
    State,
)
from distdebug.tui.screens.base import Chosen
from distdebug.tui.screens.collectives import CollectivesView
from distdebug.tui.screens.rank import RankView, stack_lines, whole_line
from distdebug.tui.screens.stacks import StacksView
from distdebug.tui.screens.waits import WaitsView
from distdebug.tui.text import Line, fold, line, plain, standing, width_of, within
from fixtures import recorded

from .driver import a_year_later, opened

ROW = line(("rank 0 ", "title"), ("in all_reduce(sum)", "bad"), ("  ", "dim"))
PLACED = (*ROW, ("a_program.py:1234 in step", "place"))


def drawn(recording: str, view: type[WaitsView | CollectivesView], scratch: Path) -> list[Line]:
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
    rows = drawn("mismatch", CollectivesView, tmp_path)
    assert all(width_of(row) <= 79 for row in rows)
    text = "\n".join(map(plain, rows))
    assert "rank 2 last, this rank" in text
    assert "after the first" in text


def test_where_there_are_no_collectives_the_way_on_is_told_in_full(tmp_path: Path) -> None:
    rows = drawn("p2p", CollectivesView, tmp_path)
    assert all(width_of(row) <= 79 for row in rows)
    assert "the screens Rank and Waits" in " ".join(map(plain, rows))


def test_the_line_of_a_log_under_the_cursor_is_shown_in_full(tmp_path: Path) -> None:
    run = recorded.unpack("exception", tmp_path / "run")

    async def check() -> None:
        async with opened(run.path, a_year_later, (80, 24)) as driver:
            await driver.press("r", "tab", "tab", "u", "home")
            assert "in <module>" not in driver.text
            await driver.press("down")
            shown = "".join(driver.text.split())
            assert '"/home/user/project/exception_train_step.py",line28,in<module>' in shown
            await driver.press("down")
            assert "line 28, in <module>" not in driver.text
            row = driver.app._sheet.region.y + 6
            await driver.pilot.click(offset=(5, row))
            await driver.settled()
            assert "line 14, in compute_loss" in " ".join(driver.text.split())

    asyncio.run(check())


def test_a_line_of_a_log_that_is_longer_than_its_place() -> None:
    short, long = line("x" * 80), line(("word " * 100, "bad"))
    assert whole_line(short, 80, 3) == []
    rows = whole_line(long, 80, 8)
    assert plain(rows[0]) + " " + plain(rows[1]) == ("word " * 32).rstrip()
    assert len(rows) == 7
    rows = whole_line(long, 80, 3)
    assert [plain(one) for one in rows[2:]] == ["… 5 more lines; E writes them to a file"]
    assert len(rows) == 3


def test_the_cursor_stays_in_sight_above_a_line_shown_in_full() -> None:
    view = RankView(Chosen())
    view.part = "log"
    lines = tuple(LogLine(f"{n} " + "word " * 30 * (n % 2)) for n in range(40))
    detail = RankDetail(0, logs={"stdout": lines})
    picture = Picture(Path("run"), states={0: State.COMPUTING}, detail=detail)
    body = view.body(picture, 79, 24)
    assert body.cursor == 39
    assert plain(body.below[0]).startswith("39 word")
    view.press("up", picture, 10)
    assert view.body(picture, 79, 24).below == []


def test_the_timeline_names_the_group_where_there_is_more_than_one(tmp_path: Path) -> None:
    run = recorded.unpack("deadlock-live", tmp_path / "run")
    chosen = Chosen()
    view = RankView(chosen)
    picture = _looked(run.path, Focus("rank", 0))
    rows = [plain(row) for row in view.body(picture, 79, 24).lines]
    assert [row.split()[:2] for row in rows] == [["1", "#0"], ["default_pg", "#0"]]
    assert all(len(row) <= 79 for row in rows)
    assert [row.rpartition(":")[2] for row in rows] == ["20", "17"]


def test_the_timeline_of_a_rank_with_one_group_names_none(tmp_path: Path) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run")
    chosen = Chosen()
    picture = _looked(run.path, Focus("rank", 2))
    rows = [plain(row) for row in RankView(chosen).body(picture, 79, 24).lines]
    assert rows[0].startswith("#52 ")
    assert "default_pg" not in "".join(rows)


LONG = "FullyShardedDataParallelWithAVeryLongName._post_backward_hook_of_the_unit (wrapper.py:1234)"


def test_stacks_keep_the_ranks_and_the_line_in_sight() -> None:
    half = tuple(range(0, 64, 2))
    other = tuple(range(1, 64, 2))
    tree = (
        StackNode(
            tuple(range(64)),
            ("main (train.py:88)",),
            (False,),
            (),
            (
                StackNode(half, (LONG,), (False,), (), ()),
                StackNode(other, ("x" * 300 + " (a.py:7)",), (False,), (), ()),
            ),
        ),
    )
    stacks = Stacks(1, (("MainThread", tuple(range(64)), tree),), ("rank 3: " + "why not " * 30,))
    picture = Picture(
        Path("run"),
        stage=Stage.LIVE,
        focus=Focus("stacks"),
        states={0: State.COMPUTING},
        stacks=stacks,
    )
    view = StacksView(Chosen())
    body = view.body(picture, 79, 24)
    rows = [plain(row) for row in [*body.top, *body.lines]]
    assert all(len(row) <= 79 for row in rows)
    assert "".join(rows).replace(" ", "").count("whynot") == 30
    (first,) = [row for row in rows if "wrapper.py" in row]
    assert first.startswith("    FullyShard…")
    assert first.endswith("… (wrapper.py:1234)  ◂ ranks 0,2,4,6,8,10,12,14,16,1… (32 in all)")
    (second,) = [row for row in rows if "a.py:7" in row]
    assert second.endswith("… (a.py:7)  ◂ ranks 1,3,5,7,9,11,13,15,17,1… (32 in all)")
    assert not [row for row in rows if "…" in row and "main" in row]
    view.filter = "unit (wrapper"  # what is cut is found, too
    assert len(view.body(picture, 79, 24).lines) == 1
    own = [part for row in stack_lines(picture, 2) for part in standing(row, 79)]
    assert [plain(row)[-19:] for row in own if "wrapper" in plain(row)] == ["… (wrapper.py:1234)"]

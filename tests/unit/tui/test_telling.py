"""What the app tells of itself: a filter that is on, and every state and sign in the help."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from distdebug.tui.feed import Feed
from distdebug.tui.keys import KEYS, VIEWS
from distdebug.tui.picture import Picture, Stage, State
from distdebug.tui.screens.base import Chosen
from distdebug.tui.screens.dialogs import finding_lines, help_lines
from distdebug.tui.text import plain
from distdebug.tui.widgets.header import BADGES

from .driver import a_year_later, made, opened


def test_a_filter_is_told_wherever_it_is_on(tmp_path: Path) -> None:
    async def check() -> None:
        run = made(tmp_path, "mismatch")
        run.close()
        async with opened(run.path, a_year_later, (80, 24)) as driver:
            for view, parts in (("o", 1), ("r", 4), ("s", 1), ("w", 1)):
                await driver.press(view)
                assert "only:" not in driver.text
                await driver.press("slash", "~", "enter")
                for _ in range(parts):
                    rows = driver.text.splitlines()
                    assert rows[2].endswith("w Waits   only: ~")
                    assert "matches '~'; Esc ends the filter" in driver.text
                    await driver.press("tab")
                await driver.press("slash", "backspace", "enter")
                assert "only:" not in driver.text

    asyncio.run(check())


def test_there_is_nothing_to_filter_in_the_collectives(tmp_path: Path) -> None:
    async def check() -> None:
        run = made(tmp_path, "mismatch")
        run.close()
        async with opened(run.path, a_year_later) as driver:
            await driver.press("c", "slash")
            await driver.until(lambda: "nothing to filter" in driver.text, "the reason")

    asyncio.run(check())


def test_the_help_has_every_state_of_a_rank_and_of_the_run() -> None:
    rows = [plain(one) for one in help_lines([view(Chosen()) for view in VIEWS], KEYS, 76)]
    names = {row[:17].strip() for row in rows if row.startswith("  ")}
    assert {badge for badge, _, _ in BADGES.values()} <= names
    assert len(BADGES) == len(Stage)
    assert all(any(name.endswith(state.value) for name in names) for state in State)
    assert {"mouse", "1-5", "PgUp PgDn", "Home End"} <= names


def test_a_run_that_cannot_be_read_is_not_one_without_findings(tmp_path: Path) -> None:
    rows = finding_lines(Picture(tmp_path, problem="it has no run.json"), 60)
    assert [plain(one) for one in rows] == ["! it has no run.json"]
    assert [plain(one) for one in finding_lines(Picture(tmp_path), 60)] == ["nothing was found"]


def test_the_order_of_the_rows_is_told(tmp_path: Path) -> None:
    async def check() -> None:
        run = made(tmp_path, "mismatch")
        run.close()
        async with opened(run.path, a_year_later, (80, 24)) as driver:
            heading = "rank↑  state"
            assert heading in driver.text
            assert "sorted" not in driver.text
            orders = ["state↓", "for↓", "lag↓", "step↑", "cpu↓", "memory↓"]
            for order in orders:
                await driver.press("greater_than_sign")
                assert driver.text.splitlines()[2].endswith(f"w Waits   sorted by {order}")
            await driver.press("v")
            assert driver.text.splitlines()[2].endswith("sorted by memory↑")
            await driver.press("greater_than_sign")
            assert driver.text.splitlines()[2].endswith("sorted by rank↓")
            assert "rank↓  state" in driver.text
            await driver.press("w")
            assert "sorted" not in driver.text
            await driver.press("o", "v")
            assert "sorted" not in driver.text
            await driver.pilot.resize_terminal(160, 24)
            await driver.press(*["greater_than_sign"] * 6)
            await driver.until(lambda: "cpu memory↓" in driver.text, "its column")

    asyncio.run(check())


def test_until_the_first_picture_the_run_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    look = Feed.look

    def late(self: Feed, *arguments: Any) -> Picture:
        go_on.wait()
        return look(self, *arguments)

    async def check() -> None:
        run = made(tmp_path, "mismatch")
        run.close()
        monkeypatch.setattr(Feed, "look", late)
        try:
            async with opened(run.path, a_year_later, (80, 24), settle=False) as driver:
                for view in VIEWS:
                    await driver.pilot.press(view.key)
                    await driver.handled()
                    await driver.pilot.pause()
                    rows = driver.text.splitlines()
                    assert rows[0].startswith(" READING ")
                    assert "NO RUN" not in driver.text
                    assert "reading ..." in driver.text
                await driver.pilot.press("o", "S")
                await driver.until(lambda: "has not been read yet" in driver.text, "a refusal")
                go_on.set()
                await driver.until(lambda: "READING" not in driver.text, "the run")
                assert "▸2" in driver.text
        finally:
            go_on.set()

    asyncio.run(check())

"""Every key does what the help says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distdebug.tui.actions import ACTIONS
from distdebug.tui.app import TerminalApp
from distdebug.tui.keys import KEYS, VIEWS
from distdebug.tui.screens.base import MOVES
from distdebug.tui.screens.collectives import CollectivesView
from distdebug.tui.screens.dialogs import Page
from distdebug.tui.screens.overview import Overview
from distdebug.tui.screens.rank import RankView
from distdebug.tui.screens.stacks import StacksView
from distdebug.tui.text import plain

from .driver import Driver, a_year_later, made, opened

Check = Callable[[Driver], Awaitable[None]]
CHECKS: dict[tuple[str, str], tuple[str, int, Check]] = {}
"""(screen or "", key) -> the made run and what must happen on it."""


def key(
    view: str, *names: str, state: str = "mismatch", ranks: int = 4
) -> Callable[[Check], Check]:
    """The function tests these keys, in one app."""

    def note(check: Check) -> Check:
        CHECKS.update({(view, name): (state, ranks, check) for name in names})
        return check

    return note


def test_every_key_is_tested() -> None:
    wanted = {("", one.key) for one in KEYS} | {("", one.key) for one in ACTIONS}
    wanted |= {(view.name, one.key) for view in VIEWS for one in view.keys}
    wanted |= {("", one) for one in MOVES} | {("", view.key) for view in VIEWS}
    wanted |= {("", str(number)) for number in range(1, len(VIEWS) + 1)} | {("", "ctrl+c")}
    assert wanted == set(CHECKS)
    bound = {binding.key for binding in TerminalApp.BINDINGS}  # type: ignore[union-attr]
    assert bound == {name for _, name in wanted}


def rank_of(driver: Driver) -> int | None:
    return driver.app.chosen.rank


# -- everywhere --------------------------------------------------------------------------------


@key("", "question_mark")
async def _help(driver: Driver) -> None:
    await driver.press("question_mark")
    assert "What a rank does" in driver.text
    await driver.press("question_mark")
    assert "What a rank does" not in driver.text


@key("", "d", state="deadlock")
async def _findings(driver: Driver) -> None:
    await driver.press("d")
    assert "rank 1 in recv(src=0, float32[64])" in driver.text
    assert "found by the app" in driver.text
    await driver.press("d")
    assert "found by the app" not in driver.text


@key("", "p", state="deadlock")
async def _page(driver: Driver) -> None:
    await driver.press("p")
    assert "deadlock: ranks wait for each other" in driver.text
    page = driver.app.screen.query_one(Page)
    await page.go("missing_rank.md")
    await page.go("https://example.org")
    await driver.pilot.pause()
    assert "missing_rank: a rank has not come" in driver.text
    await driver.press("p")
    assert len(driver.app.screen_stack) == 1, "there was one finding"
    await driver.press("d", "p")
    assert "deadlock: ranks wait for each other" in driver.text
    await driver.press("escape")


@key("", "q")
async def _quit(driver: Driver) -> None:
    await driver.pilot.press("q")
    await driver.handled()
    assert driver.app._exit


@key("", "ctrl+c")
async def _interrupt(driver: Driver) -> None:
    await driver.pilot.press("ctrl+c")
    await driver.handled()
    assert driver.app._exit


@key("", "space")
async def _pause(driver: Driver) -> None:
    await driver.looked_again()  # or the second picture of a run that is over is a newer one
    await driver.press("space")
    shown = driver.text
    assert "PAUSED, 0 newer" in shown
    driver.app.feed._mark = None  # so that a look is a picture, though nothing has changed
    driver.app.feed._wake.set()
    await driver.until(lambda: driver.app.missed, "a newer picture")
    assert "PAUSED, 1 newer" in driver.text
    await driver.press("space")
    assert "PAUSED" not in driver.text
    assert driver.app.picture is driver.app.newest


@key("", "slash")
async def _filter(driver: Driver) -> None:
    await driver.press("slash")
    await driver.press(*"broadcast")
    assert len(driver.app._sheet.lines) == 1, "it counts while it is typed"
    await driver.press("enter")
    assert len(driver.app._sheet.lines) == 1
    assert "broadcast" in driver.text
    await driver.press("slash", "~")
    assert "no line matches '~'" in plain(driver.app._sheet.lines[0])
    await driver.press("escape")
    assert len(driver.app._sheet.lines) == 1


@key("", "escape")
async def _escape(driver: Driver) -> None:
    driver.app.view.filter = "broadcast"
    await driver.press("escape")
    assert len(driver.app._sheet.lines) == 4
    await driver.press("w", "escape")
    assert driver.app.view.name == "overview"


@key("", "enter")
async def _enter(driver: Driver) -> None:
    await driver.press("enter")
    assert driver.app.view.name == "rank"
    assert "rank 2 in a call" in driver.text


@key("", "f")
async def _follow(driver: Driver) -> None:
    await driver.press("f", "v")
    assert driver.app.chosen.follow
    assert rank_of(driver) == 2
    await driver.press("f")
    assert not driver.app.chosen.follow


@key("", "e")
async def _svg(driver: Driver) -> None:
    await driver.press("e")
    (path,) = Path.cwd().glob("distdebug-overview-*.svg")
    assert path.read_text().startswith("<svg")
    assert path.stat().st_mode & 0o077 == 0


@key("", "E", state="late", ranks=256)
async def _text(driver: Driver) -> None:
    await driver.press("E", "E")
    paths = sorted(Path.cwd().glob("distdebug-overview-*.txt"))
    assert len(paths) == 2
    assert "   192 wwww" in paths[0].read_text()


@key("", "T")
async def _theme(driver: Driver) -> None:
    before = driver.app.theme
    styles = dict(driver.app._sheet.palette)
    await driver.press("T")
    assert driver.app.theme != before
    assert driver.app._sheet.palette != styles


@key("", "ctrl+p")
async def _palette(driver: Driver) -> None:
    await driver.press("ctrl+p")
    assert len(driver.app.screen_stack) == 2
    await driver.press("escape")
    assert len(driver.app.screen_stack) == 1


DIGITS = {str(number): one.name for number, one in enumerate(VIEWS, 1)}
LETTERS = {one.key: one.name for one in VIEWS}


@key("", *DIGITS)
async def _numbered(driver: Driver) -> None:
    for digit, view in DIGITS.items():
        await driver.press("1" if view != "overview" else "5", digit)
        assert driver.app.view.name == view


@key("", *LETTERS)
async def _named(driver: Driver) -> None:
    for letter, view in LETTERS.items():
        await driver.press("1" if view != "overview" else "5", letter)
        assert driver.app.view.name == view
        assert f"{letter} {driver.app.view.title}" in driver.text


@key("", *(one.key for one in ACTIONS))
async def _refused(driver: Driver) -> None:
    tones = {text.strip(): tone for row in driver.app._parts["bar"].lines for text, tone in row}
    assert {tones[one.key] for one in ACTIONS} == {"dim"}
    assert tones["q"] == "key"
    for action in ACTIONS:
        driver.app.clear_notifications()
        await driver.until(lambda: "the run is over" not in driver.text, "no refusal yet")
        await driver.press(action.key)
        await driver.until(lambda: "the run is over" in driver.text, f"a refusal of {action.key}")
        assert len(driver.app.screen_stack) == 1


# -- movement ----------------------------------------------------------------------------------

FROM_10_OF_20 = {
    "up": 9,
    "k": 9,
    "down": 11,
    "j": 11,
    "home": 0,
    "end": 19,
    "pageup": 0,
    "pagedown": 19,
}
"""Where each key leads to."""


@key("", *FROM_10_OF_20, state="healthy", ranks=20)
async def _move(driver: Driver) -> None:
    for pressed, to in FROM_10_OF_20.items():
        driver.app.chosen.rank, driver.app.chosen.touched = 10, True
        driver.app.draw()
        await driver.press(pressed)
        assert rank_of(driver) == to, pressed


FROM_130_OF_256 = {"left": 129, "h": 129, "right": 131, "l": 131}
"""The same on the map, which has 64 ranks a row."""


@key("", *FROM_130_OF_256, state="late", ranks=256)
async def _sideways(driver: Driver) -> None:
    for pressed, to in FROM_130_OF_256.items():
        driver.app.chosen.rank, driver.app.chosen.touched = 130, True
        await driver.press("up", "down", pressed)
        assert rank_of(driver) == to, pressed


# -- single screens ----------------------------------------------------------------------------


@key("overview", "greater_than_sign")
async def _sort(driver: Driver) -> None:
    view = driver.app.views["overview"]
    assert isinstance(view, Overview)
    await driver.press("greater_than_sign", "greater_than_sign")
    assert view.sort == "for"
    assert "for↓" in driver.text


@key("overview", "v")
async def _reverse(driver: Driver) -> None:
    view = driver.app.views["overview"]
    assert isinstance(view, Overview)
    await driver.press("v")
    assert [row.rank for row in view.rows(driver.app.picture)] == [3, 2, 1, 0]


@key("overview", "t", state="late")
async def _strips(driver: Driver) -> None:
    await driver.press("t")
    assert "waiting for others" in driver.text
    assert "train.py:88" not in driver.text
    await driver.press("home", "down")
    assert rank_of(driver) == 1
    await driver.press("t")
    assert "train.py:88" in driver.text


@key("collectives", "left_square_bracket", "right_square_bracket")
async def _group(driver: Driver) -> None:
    view = driver.app.views["collectives"]
    assert isinstance(view, CollectivesView)
    await driver.press("c", "left_square_bracket", "right_square_bracket")
    assert view.focus().group == ("0", 0)
    await driver.press("left", "h", "right", "l", "left")
    assert "#16 of group" in driver.text


@key("rank", "left_square_bracket", "right_square_bracket")
async def _neighbour(driver: Driver) -> None:
    await driver.press("r", "right_square_bracket")
    assert rank_of(driver) == 3
    await driver.press("right_square_bracket")
    assert rank_of(driver) == 0
    await driver.press("left_square_bracket")
    assert rank_of(driver) == 3
    assert "rank 3 in a call" in driver.text


@key("rank", "tab")
async def _part(driver: Driver) -> None:
    await driver.press("r", "tab", "tab", "tab")
    view = driver.app.view
    assert isinstance(view, RankView)
    assert view.part == "about"
    assert "local rank" in driver.text


@key("rank", "u")
async def _source(driver: Driver) -> None:
    await driver.press("r", "u")
    assert "epoch 0 step 16" in driver.text
    await driver.press("u")
    assert "\\x1b" not in driver.text.splitlines()[3]
    assert "UserWarning: \\x07slow" in driver.text
    assert "[bold]" in driver.text
    await driver.press("u", "u")
    assert "epoch 0 step 16" in driver.text


@key("rank", "l")
async def _level(driver: Driver) -> None:
    await driver.press("r", "l")
    assert "level any" in driver.text
    await driver.press("l", "l")
    assert "level info" in driver.text
    assert "loss=" in driver.text
    await driver.press("l")
    assert "loss=" not in driver.text
    assert "slow disk" in driver.text


@key("stacks", "a")
async def _all_frames(driver: Driver) -> None:
    await driver.press("s")
    view = driver.app.view
    assert isinstance(view, StacksView)
    few = len(driver.app._sheet.lines)
    await driver.press("a")
    assert view.everything
    assert len(driver.app._sheet.lines) >= few
    assert "all_reduce (distributed_c10d.py:3200)" in driver.text


TESTS = {check: (state, ranks) for state, ranks, check in CHECKS.values()}


@pytest.mark.parametrize("check", TESTS, ids=lambda check: check.__name__.strip("_"))
def test_key(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(tmp_path, *TESTS[check])

    async def drive() -> None:
        async with opened(directory.path, a_year_later) as driver:
            await check(driver)

    asyncio.run(drive())

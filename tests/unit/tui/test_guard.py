"""A fault of the app's own in a screen, a key or an action is a sentence, and the app goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.screen import ModalScreen

import distdebug.tui.__main__ as command
from distdebug import tui
from distdebug.record.requests import control
from distdebug.tui.app import Guard
from distdebug.tui.screens import dialogs
from distdebug.tui.screens.overview import Overview
from distdebug.tui.screens.waits import WaitsView

from .driver import Driver, a_year_later, clock_of, made, opened


def broken(*_: object, **__: object) -> object:
    raise RuntimeError("a \x1b[2J bug")


WORDS = "(RuntimeError: a \\x1b[2J bug)"


async def told(driver: Driver, place: str) -> None:
    """The sentence is on the screen: in the place of what failed, or as a notification."""
    wanted = f"{place} failed, a bug of distdebug's app {WORDS}; the rest goes on"

    def there() -> bool:
        said = [one.message for one in driver.app._notifications]
        return wanted in said or wanted.replace(" ", "") in "".join(driver.text.split())

    await driver.until(there, wanted)


def on_a_run(tmp_path: Path, check: Callable[[Driver], object], state: str = "mismatch") -> None:
    async def whole() -> None:
        async with opened(run.path, a_year_later, (80, 24)) as driver:
            await check(driver)  # type: ignore[misc]
            assert driver.app.is_running
            assert driver.app.return_code is None

    run = made(tmp_path, state)
    run.close()
    asyncio.run(whole())


def test_a_screen_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(driver: Driver) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(WaitsView, "body", broken)
            await driver.press("w")
            await told(driver, "the screen Waits")
            assert "MISMATCH" in driver.text  # what stands above it is whole
            await driver.press("down", "o")
            assert "a bug of" not in driver.text
            assert "▸2" in driver.text
            await driver.press("w")
            await told(driver, "the screen Waits")
        await driver.press("home")
        assert "a bug of" not in driver.text
        assert list(driver.app.guard.kept) == ["the screen Waits"]
        trace = driver.app.guard.kept["the screen Waits"]
        assert "in broken" in trace
        assert "\x1b" not in trace

    on_a_run(tmp_path, check)


@pytest.mark.parametrize(
    ("name", "place"), [("banner_lines", "the banner"), ("header_lines", "the header")]
)
def test_what_stands_above_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    async def check(driver: Driver) -> None:
        monkeypatch.setattr(tui.app, name, broken)
        await driver.press("down")
        await told(driver, place)
        assert " 0     " in driver.text  # the rows are there

    on_a_run(tmp_path, check)


@pytest.mark.parametrize("method", ["press", "pointed"])
def test_a_key_or_a_click_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def check(driver: Driver) -> None:
        monkeypatch.setattr(Overview, method, broken)
        if method == "press":
            await driver.press("greater_than_sign")
            await told(driver, "this key")
        else:
            await driver.pilot.click("#body", offset=(3, 1))
            await told(driver, "this click")

    on_a_run(tmp_path, check)


def test_what_a_screen_asks_of_the_reader_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(driver: Driver) -> None:
        monkeypatch.setattr(Overview, "focus", broken)
        await driver.pilot.press("down")
        await driver.handled()
        await driver.pilot.pause()
        assert list(driver.app.guard.kept) == ["the choice of what to read"]
        assert "▸2" in driver.text

    on_a_run(tmp_path, check)


def test_a_picture_that_cannot_be_taken_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(driver: Driver) -> None:
        said: list[str] = []
        monkeypatch.setattr(tui.app, "bar_lines", broken)
        monkeypatch.setattr(driver.app, "say", lambda sentence, _: said.append(sentence))
        for _ in range(3):
            driver.app.draw()
        assert len(said) == 1
        assert said[0].startswith("the drawing failed")

    on_a_run(tmp_path, check)


@pytest.mark.parametrize(
    ("key", "name", "place"),
    [
        ("question_mark", "help_lines", "the help"),
        ("d", "finding_lines", "the list of findings"),
    ],
)
def test_what_is_read_above_a_screen_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, name: str, place: str
) -> None:
    async def check(driver: Driver) -> None:
        monkeypatch.setattr(dialogs, name, broken)
        await driver.press(key)
        await told_between_frames(driver, place)
        await driver.press("escape")
        assert "▸2" in driver.text

    async def told_between_frames(driver: Driver, place: str) -> None:
        wanted = f"{place} failed"
        await driver.until(lambda: wanted in driver.text, wanted)

    on_a_run(tmp_path, check)


def test_an_action_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, "late", hold=True)

    async def whole() -> None:
        async with opened(run.path, clock_of(run), (80, 24)) as driver:
            monkeypatch.setattr(control, "ask", broken)
            await driver.press("S", "y")
            await told(driver, "this action")
            assert driver.app.is_running

    asyncio.run(whole())
    run.close()


def test_the_same_screens_without_a_fault(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        for key in ("o", "c", "r", "s", "w", "down", "greater_than_sign", "question_mark"):
            await driver.press(key)
        assert driver.app.guard.kept == {}

    on_a_run(tmp_path, check)


def test_traces_are_printed_when_the_app_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class App:
        return_code = 0
        guard = Guard()

        def __init__(self, path: Path) -> None:
            for number in range(2):
                self.guard.run("the screen Waits", broken, str)
                assert self.path_seen(path, number)

        def path_seen(self, path: Path, number: int) -> bool:
            return path == tmp_path

        def run(self) -> None: ...

    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(tui.app, "TerminalApp", App)
    monkeypatch.setattr(command.sys, "stdin", terminal)
    monkeypatch.setattr(command.sys.stdout, "isatty", lambda: True)
    assert command.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().err
    assert printed.count("while the app ran, the screen Waits failed") == 1
    assert "in broken" in printed


@pytest.mark.parametrize("name", ["help", "question", "choice", "filter"])
def test_a_dialog_that_is_left_in_the_moment_it_opens(name: str, tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        palette = driver.app._sheet.palette
        made: dict[str, Callable[[], ModalScreen[Any]]] = {
            "help": lambda: dialogs.Reading(lambda _: [], palette),
            "question": lambda: dialogs.Confirm("This?", palette),
            "choice": lambda: dialogs.Choose("Which?", ["this"], palette),
            "filter": lambda: dialogs.FilterInput("", lambda _: None),
        }
        dialog = made[name]()
        driver.app.push_screen(dialog)
        dialog.dismiss()
        await driver.pilot.pause()
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "the screen itself")
        await driver.press("c")

    on_a_run(tmp_path, check)

"""The app as a whole: the mouse, dialogs, actions on a live run, sizes, trouble."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.screen import ModalScreen

import distdebug.tui.__main__ as command
from distdebug import tui
from distdebug.record.requests import control
from distdebug.record.requests.control import ControlServer
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.tui.app import Fresh, Guard
from distdebug.tui.keys import VIEWS, bar_keys
from distdebug.tui.picture import Picture
from distdebug.tui.screens import dialogs
from distdebug.tui.screens.overview import Overview
from distdebug.tui.screens.waits import WaitsView
from distdebug.tui.widgets.header import bar_lines

from .driver import Driver, a_year_later, clock_of, made, opened

ROOT = Path(__file__).resolve().parents[3]


def drive(
    directory: RunDirectory,
    check: Callable[[Driver], Awaitable[None]],
    size: tuple[int, int] = (100, 30),
    live: bool = False,
) -> None:
    async def whole() -> None:
        clock = clock_of(directory) if live else a_year_later
        async with opened(directory.path, clock, size) as driver:
            await check(driver)

    try:
        asyncio.run(whole())
    finally:
        directory.close()


def test_the_mouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(driver: Driver) -> None:
        await driver.pilot.click("#body", offset=(3, 1))
        await driver.settled()
        assert driver.app.chosen.rank == 1
        await driver.pilot.click("#head", offset=(18, 2))
        await driver.settled()
        assert driver.app.view.name == "collectives"
        await driver.pilot.click("#body", offset=(13, 3))
        await driver.settled()
        assert driver.app.chosen.rank == 3
        assert "#1 of group" in driver.text
        keys = [(key.shown, key.label) for key in bar_keys(driver.app.view)]
        _, places = bar_lines(keys, 100, 3)
        row, start = next(
            (row, start) for row, start, _, index in places if keys[index][1] == "text"
        )
        assert row == 1
        monkeypatch.chdir(tmp_path)
        await driver.pilot.click("#bar", offset=(start + 1, row))
        await driver.until(lambda: list(tmp_path.glob("*.txt")), "an export")
        start = next(start for _, start, _, index in places if keys[index][1] == "pause")
        await driver.pilot.click("#bar", offset=(start + 1, 0))
        await driver.until(lambda: driver.app.missed is not None, "a pause")

    drive(made(tmp_path, "mismatch"), check)


def test_every_key_is_at_the_foot_of_every_screen(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        for view in VIEWS:
            await driver.press(view.key)
            foot = "\n".join(driver.text.splitlines()[-3:])
            for key in bar_keys(driver.app.view):
                assert f" {key.shown} {key.label}" in foot

    drive(made(tmp_path, "late"), check, (80, 24))


def test_the_mouse_on_the_map(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.pilot.click("#body", offset=(7 + 5, 2))
        await driver.settled()
        assert driver.app.chosen.rank == 2 * 64 + 5

    drive(made(tmp_path, "late", 256), check)


def _server(directory: RunDirectory, asked: list[Mapping[str, Any]]) -> ControlServer:
    def note(request: Mapping[str, Any]) -> str:
        asked.append(request)
        return "it is done"

    server = ControlServer(directory.path, {"stacks": note, "break": note})
    server.start()
    return server


def test_an_action_is_asked_for_and_then_taken(tmp_path: Path) -> None:
    directory = made(tmp_path, "late", hold=True)
    asked: list[Mapping[str, Any]] = []
    server = _server(directory, asked)

    async def check(driver: Driver) -> None:
        await driver.press("S")
        assert "Take the stacks of all ranks now?" in driver.text
        await driver.press("n")
        assert "Take the stacks" not in driver.text
        await driver.press("N", "escape", "S", "y")
        await driver.until(lambda: "it is done" in driver.text, "the answer")
        await driver.press("down", "B")
        assert "Stop rank 1 at its next line, or before its next call?" in driver.text
        await driver.press("enter")
        await driver.until(lambda: len(asked) == 2, "the second action")
        await driver.press("X", "y")
        await driver.until(lambda: "this run cannot stop" in driver.text, "the refusal")

    drive(directory, check, live=True)
    server.close()
    assert asked == [{"action": "stacks"}, {"rank": 1, "action": "break"}]


def test_a_click_answers_a_question(tmp_path: Path) -> None:
    directory = made(tmp_path, "late", hold=True)
    asked: list[Mapping[str, Any]] = []
    server = _server(directory, asked)

    async def check(driver: Driver) -> None:
        await driver.press("S")
        await driver.pilot.click("#question", offset=(10, 2))
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "an end of the question")
        await driver.press("S")
        await driver.pilot.click("#question", offset=(2, 2))
        await driver.until(lambda: asked, "the action")

    drive(directory, check, live=True)
    server.close()


def test_a_live_run_without_a_supervisor_to_ask(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.press("S", "y")
        await driver.until(lambda: "nobody supervises this run" in driver.text, "the refusal")

    drive(made(tmp_path, "late", hold=True), check, live=True)


def test_the_verdict_appears_and_the_cursor_goes_there(tmp_path: Path) -> None:
    directory = made(tmp_path, "mismatch", hold=True)

    async def check(driver: Driver) -> None:
        await driver.until(lambda: "MISMATCH" in driver.text, "the verdict")
        assert "▸2" in driver.text
        assert driver.app.chosen.rank == 2

    drive(directory, check, live=True)


@pytest.mark.parametrize("size", [(20, 6), (80, 24), (250, 70)], ids=str)
@pytest.mark.parametrize("ranks", [1, 65])
def test_every_screen_at_every_size(tmp_path: Path, size: tuple[int, int], ranks: int) -> None:
    async def check(driver: Driver) -> None:
        for view in VIEWS:
            await driver.press(view.key)
            rows = driver.text.splitlines()
            assert len(rows) == size[1]
            assert view.title in driver.text or size[0] < 80

    drive(made(tmp_path, "mismatch" if ranks > 2 else "late", ranks), check, size)


def test_a_window_that_changes_its_size(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.pilot.resize_terminal(160, 40)
        await driver.until(lambda: "loss" in driver.text, "more columns")
        await driver.pilot.resize_terminal(80, 24)
        await driver.until(lambda: "loss" not in driver.text, "fewer columns")

    drive(made(tmp_path, "late"), check, (80, 24))


def test_the_cursor_stays_in_sight_of_a_window_that_becomes_smaller(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.press("end")
        assert "\n 47 " in driver.text
        await driver.pilot.resize_terminal(60, 18)
        await driver.until(lambda: "\n 47 " in driver.text, "the chosen rank")
        assert "\n 0 " not in driver.text

    drive(made(tmp_path, "late", 48), check, (80, 60))


def test_the_chosen_rank_is_in_sight_in_the_collectives(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.press("c")
        assert "\nrank 0 " in driver.text
        await driver.press("end")
        await driver.until(lambda: "\nrank 47 " in driver.text, "the last rank")
        assert "\nrank 0 " not in driver.text
        await driver.press("pageup", "up")
        await driver.press("home")
        await driver.until(lambda: "\nrank 0 " in driver.text, "the first rank")

    drive(made(tmp_path, "mismatch", 48), check, (80, 24))


def test_trouble_is_a_state_on_the_screen(tmp_path: Path) -> None:
    directory = made(tmp_path, "late", hold=True)

    async def check(driver: Driver) -> None:
        directory.flight(0).unlink()
        shutil.rmtree(directory.path)
        await driver.until(lambda: " GONE " in driver.text, "that it is gone")
        for view in VIEWS:
            driver.app.action_view(view.name)
            await driver.pilot.pause()
        assert driver.app.is_running

    drive(directory, check, live=True)


def test_no_run_at_all(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path / "x", a_year_later, settle=False) as driver:
            await driver.until(lambda: "there is no run directory" in driver.text, "the reason")
            for view in VIEWS:
                driver.app.action_view(view.name)
                await driver.pilot.press("down", "right", "home")
            made(tmp_path, "late").path.rename(tmp_path / "x")
            await driver.until(lambda: " KILLED " in driver.text, "the run, once it is there")

    asyncio.run(check())


def test_a_fault_while_reading_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("a \x1b bug")

    monkeypatch.setattr("distdebug.tui.rows.fronts", broken)

    async def check() -> None:
        async with opened(made(tmp_path, "late").path, a_year_later, settle=False) as driver:
            wanted = "cannot be read (RuntimeError: a \\x1b bug)"
            await driver.until(lambda: wanted in driver.text, "the fault")

    asyncio.run(check())


def test_a_screen_that_is_opened_while_paused(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.press("space", "c")
        await driver.until(lambda: "#17 of group" in driver.text, "the collectives")
        assert "PAUSED" in driver.text

    drive(made(tmp_path, "mismatch"), check)


def test_the_end_of_a_log_is_in_view_and_the_cursor_too(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        await driver.press("r", "tab", "tab")
        await driver.until(lambda: "epoch 0 step 16" in driver.text, "the last line")
        assert "epoch 0 step 2\n" not in driver.text
        await driver.press("home")
        await driver.until(lambda: "epoch 0 step 0\n" in driver.text, "the first line")
        await driver.press("o", "end")
        await driver.until(lambda: "\n 19 " in driver.text, "the last rank")

    drive(made(tmp_path, "healthy", 20), check, (80, 12))


def test_a_newer_picture_takes_the_place_of_one_not_drawn_yet(tmp_path: Path) -> None:
    fresh = Fresh(Picture(tmp_path))
    assert fresh.can_replace(Fresh(Picture(tmp_path)))


def test_it_needs_neither_torch_nor_the_supervisor() -> None:
    script = (
        "import sys, distdebug.tui.app, distdebug.tui.__main__, distdebug.tui.screens.dialogs; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'psutil') "
        "or m.startswith(('distdebug.supervisor', 'distdebug.commands', 'distdebug.rank'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [([], 2, "usage:"), (["--help"], 0, "usage:"), (["x"], 2, "needs a terminal")],
)
def test_the_module_as_a_command(arguments: list[str], code: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distdebug.tui", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert words in done.stderr


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

"""Acting on the ranks of a live run: what is asked first, what is sent, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distdebug.record.requests import breakpoints
from distdebug.record.requests.breakpoints import Stop
from distdebug.record.requests.control import ControlServer
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.tui import attaching
from distdebug.tui.picture import Picture
from tests.unit.tui.test_app import drive

from .driver import Driver, made

PLAN = {
    "schema": "distdebug.faults/1",
    "seed": 1,
    "faults": [
        {"number": 0, "text": "kill(rank=1) @ all_reduce#5"},
        {"number": 1, "text": "delay(rank=3, \x1b[2J200ms) @ all_reduce"},
        {"text": "no number"},
    ],
}


class Served:
    """A made run with a supervisor that notes what it is asked."""

    def __init__(self, tmp_path: Path, state: str = "late") -> None:
        self.directory: RunDirectory = made(tmp_path, state, hold=True)
        self.asked: list[Mapping[str, Any]] = []

        def note(request: Mapping[str, Any]) -> str:
            self.asked.append(request)
            return "it is done"

        names = ("stacks", "break", "continue", "inject", "stop")
        self.server = ControlServer(self.directory.path, dict.fromkeys(names, note))
        self.server.start()

    def stands(self, rank: int, address: str = "") -> None:
        place = ("/home/user/train.py", 41, "train_step", breakpoints.BREAKPOINT, address)
        breakpoints.announce(self.directory.path, Stop(rank, os.getpid(), *place))

    def drive(self, check: Any) -> None:
        try:
            drive(self.directory, check, live=True)
        finally:
            self.server.close()


def test_break_is_for_the_chosen_rank(tmp_path: Path) -> None:
    served = Served(tmp_path)

    async def check(driver: Driver) -> None:
        await driver.press("down", "B")
        assert "Stop rank 1 at its next line, or before its next call?" in driver.text
        assert "all ranks" not in driver.text
        await driver.press("a")  # no answer to this question
        assert "Stop rank 1" in driver.text
        await driver.press("y")
        await driver.until(lambda: "it is done" in driver.text, "the answer")

    served.drive(check)
    assert served.asked == [{"rank": 1, "action": "break"}]


def test_continue_is_for_one_or_for_all(tmp_path: Path) -> None:
    served = Served(tmp_path)

    async def check(driver: Driver) -> None:
        await driver.press("down", "C", "y")
        await driver.until(lambda: len(served.asked) == 1, "the first")
        await driver.press("C", "a")
        await driver.until(lambda: len(served.asked) == 2, "the second")
        await driver.press("C")
        assert "y yes   a all ranks   n no" in driver.text
        await driver.pilot.click("#question", offset=(15, 2))
        await driver.until(lambda: len(served.asked) == 3, "the third")
        await driver.press("C")
        await driver.pilot.click("#question", offset=(24, 2))
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "an end of the question")

    served.drive(check)
    one, every = {"rank": 1, "action": "continue"}, {"rank": None, "action": "continue"}
    assert served.asked == [one, every, every]


def test_inject_lists_the_plan(tmp_path: Path) -> None:
    served = Served(tmp_path)
    (served.directory.path / "faults.json").write_text(json.dumps(PLAN))

    async def check(driver: Driver) -> None:
        await driver.press("I")
        assert "Which fault of the plan is to happen now?" in driver.text
        assert "  0  kill(rank=1) @ all_reduce#5" in driver.text
        assert "  1  delay(rank=3, \\x1b[2J200ms) @ all_reduce" in driver.text
        assert "no number" not in driver.text
        await driver.press("escape", "I", "end", "home", "j", "enter")
        await driver.until(lambda: "it is done" in driver.text, "the answer")
        await driver.press("I")
        await driver.pilot.click("#choices", offset=(3, 1))
        await driver.press("up", "enter")
        await driver.until(lambda: len(served.asked) == 2, "the second")

    served.drive(check)
    assert served.asked == [{"fault": 1, "action": "inject"}, {"fault": 0, "action": "inject"}]


@pytest.mark.parametrize("plan", [None, "{", '{"schema": "distdebug.faults/2", "faults": [{}]}'])
def test_inject_without_a_plan(tmp_path: Path, plan: str | None) -> None:
    served = Served(tmp_path)
    if plan is not None:
        (served.directory.path / "faults.json").write_text(plan)

    async def check(driver: Driver) -> None:
        await driver.press("I")
        await driver.until(lambda: "this run has no plan of faults" in driver.text, "the refusal")
        assert len(driver.app.screen_stack) == 1

    served.drive(check)
    assert served.asked == []


def test_attach_to_a_rank_that_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tmp_path, "paused")
    opened: list[tuple[Path, int]] = []

    async def check(driver: Driver) -> None:
        app = driver.app
        await driver.press("A")
        words = "rank 0 is not at a breakpoint; B stops it"
        await driver.until(lambda: words in driver.text, "the refusal")
        served.stands(0, "127.0.0.1:5678")
        await driver.press("A")
        await driver.until(lambda: "127.0.0.1:5678" in driver.text, "where the editor connects")
        served.stands(0)
        await driver.press("A")
        assert "Open the prompt of rank 0 here?" in driver.text
        await driver.press("y")
        words = "not in this terminal; use distdebug attach --rank 0"
        await driver.until(lambda: words in driver.text.replace("\n", " "), "why it cannot be")

        class Lent:
            def __enter__(self) -> None:
                app._post(Picture(served.directory.path, problem="seen meanwhile"))
                assert app.newest.problem == ""

            def __exit__(self, *_: object) -> None: ...

        def attach(directory: Path, rank: int) -> int:
            opened.append((directory, rank))
            return 0

        monkeypatch.setattr(app, "suspend", Lent)
        monkeypatch.setattr(attaching, "attach", attach)
        app.feed.stop()
        await driver.press("A")
        await driver.pilot.press("y")
        await driver.until(lambda: app.newest.problem == "seen meanwhile", "what came meanwhile")

    served.drive(check)
    assert opened == [(served.directory.path, 0)]

"""A terminal that vanishes without a word: its app ends, and the run as after a SIGHUP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from distdebug.record.runs.run_directory import RunDirectory
from tests.support.runs import DISTDEBUG, environment
from tests.support.terminal import Terminal
from tests.support.waiting import until

HANGUP = 129
WITHIN_S = 60.0
"""On two idle cores it is half a second; the bound holds on a crowded machine, too."""
LEFT = r"\x1b\[\?1049l"
"""The app's farewell: back to the terminal's first screen."""
APP = (str(DISTDEBUG), "tui")
MODULE = (sys.executable, "-m", "distdebug.tui")


def run_directory(tmp_path: Path) -> Path:
    directory = RunDirectory.create(tmp_path / ".distdebug")
    directory.close()
    return directory.path


def opened(command: Sequence[str], tmp_path: Path) -> Terminal:
    """It is not told of its terminal's end: the terminal is not its session's own."""
    terminal = Terminal(command, tmp_path, environment(), own=False)
    terminal.expect("Overview")
    return terminal


def below(terminal: Terminal) -> list[psutil.Process]:
    return psutil.Process(terminal.process.pid).children(recursive=True)


def names(processes: Sequence[psutil.Process]) -> list[str]:
    """Of those that are still there."""
    found = []
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(one.name())
    return found


def ends(terminal: Terminal) -> int:
    """The exit code, which comes in time."""
    began_s = time.monotonic()
    terminal.vanish()
    code = terminal.process.wait(WITHIN_S)
    print(f"it ended {time.monotonic() - began_s:.2f} s after its terminal")
    return code


@pytest.mark.parametrize("command", [APP, MODULE], ids=["distdebug tui", "python -m distdebug.tui"])
def test_the_app_ends_with_its_terminal(command: Sequence[str], tmp_path: Path) -> None:
    with opened([*command, str(run_directory(tmp_path))], tmp_path) as terminal:
        processes = below(terminal)
        assert ends(terminal) == HANGUP
        assert not psutil.wait_procs(processes, WITHIN_S)[1]


def test_in_the_middle_of_drawing(tmp_path: Path) -> None:
    """The terminal had taken nothing any more, and the app was waiting for it."""
    with opened([*MODULE, str(run_directory(tmp_path))], tmp_path) as terminal:
        terminal.press("cwso" * 300)
        process = psutil.Process(terminal.process.pid)
        used_s = -1.0
        while used_s < (used_s := sum(process.cpu_times()[:2])):
            time.sleep(0.3)  # until it stands still
        assert ends(terminal) == HANGUP


def test_nothing_is_said_about_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    line = 'exec "$0" -m distdebug.tui "$1" 2> "$2"'
    words = ["sh", "-c", line, sys.executable, str(run_directory(tmp_path)), str(said)]
    with Terminal(words, tmp_path, environment(), own=False) as terminal:
        until_s = time.monotonic() + 60
        while "Overview" not in (said.read_text(errors="replace") if said.exists() else ""):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        assert ends(terminal) == HANGUP
    assert re.search(rf"{LEFT}(\x1b\[[?\d]+[a-z])*\Z", said.read_text())  # no word behind it


def test_while_the_terminal_stays_so_does_the_app(tmp_path: Path) -> None:
    with opened([*APP, str(run_directory(tmp_path))], tmp_path) as terminal:
        with pytest.raises(subprocess.TimeoutExpired):
            terminal.process.wait(1.5)
        terminal.press("q")
        assert terminal.finish() == 0


def test_a_run_ends_as_after_a_sighup(tmp_path: Path) -> None:
    words = ["exec", "--tui", "--run-dir", str(tmp_path / "run"), "--", "sleep", "600"]
    with opened([str(DISTDEBUG), *words], tmp_path) as terminal:
        until(lambda: "sleep" in names(below(terminal)), "the command runs")  # the app is before it
        processes = below(terminal)
        assert ends(terminal) == HANGUP
        assert not psutil.wait_procs(processes, WITHIN_S)[1]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["outcome"], report["exit_code"]) == ("interrupted", HANGUP)


def test_a_run_whose_app_is_left_goes_on(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    words = ["exec", "--tui", "--allow-unwatched", "--run-dir", str(tmp_path / "run")]
    words += ["--", "cat", str(go)]
    with opened([str(DISTDEBUG), *words], tmp_path) as terminal:
        terminal.press("q")
        terminal.expect(LEFT)
        go.write_text("it goes on")
        assert terminal.finish() == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["outcome"], report["exit_code"]) == ("ok", 0)

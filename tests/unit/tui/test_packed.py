"""The app on a run that `--ci` has packed, and on runs whose ranks have never begun."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.record.runs.artefact import SUFFIX, pack
from distdebug.record.runs.artefact import opened as unpacked
from distdebug.tui.keys import VIEWS
from fixtures import recorded
from tests.support.runs import DISTDEBUG
from tests.support.tmux import Terminal, needs_tmux
from tests.support.waiting import until

from .driver import a_year_later, opened


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    """The run of a mismatch, packed."""
    run = recorded.unpack("mismatch", tmp_path / "run").path
    target = tmp_path / f"run{SUFFIX}"
    pack(run, target)
    return target


def test_a_packed_run_is_shown_as_the_run(artefact: Path) -> None:
    async def check(path: Path) -> None:
        async with opened(path, a_year_later, (80, 24)) as driver:
            assert " ENDED " in driver.text
            assert "MISMATCH, exit code 91" in driver.text
            for view in VIEWS:
                await driver.press(view.key)
            await driver.press("c")
            assert "≠ rank 2" in driver.text
            await driver.press("S")
            await driver.until(lambda: "the run is over" in driver.text, "the refusal")
            assert driver.app.guard.kept == {}

    with unpacked(str(artefact)) as directory:
        asyncio.run(check(directory.path))


@needs_tmux
def test_a_packed_run_and_the_mouse_in_a_terminal(artefact: Path) -> None:
    command = [sys.executable, "-m", "distdebug.tui", str(artefact)]
    with Terminal(command, Path(__file__).resolve().parents[3], (80, 24)) as terminal:
        terminal.until(" ENDED ", "▸2")
        terminal.click(18, 2)
        terminal.until("≠ rank 2 ◂")
        terminal.click(1, 2)
        terminal.until("▸2     ended", "> sort")
        rows = terminal.text.splitlines()
        at = next(at for at, row in enumerate(rows) if row.startswith(" 0 "))
        plain = terminal.styled(at)
        terminal.click(20, at)
        until(lambda: terminal.styled(at) != plain, lambda: terminal.text)  # the cursor is there
        terminal.click(32, 2)
        terminal.until("rank 0 raised the verdict")
        terminal.press("q")
        terminal.until("CODE 0")


def test_what_is_no_artefact_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / f"x{SUFFIX}").write_bytes(b"nothing of ours")
    script = (
        "import sys, distdebug.tui.__main__ as m; "
        "sys.stdin.isatty = sys.stdout.isatty = lambda: True; "
        "raise SystemExit(m.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / f"x{SUFFIX}")],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("distdebug: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "outcome"), [("pass", "OK"), ("raise SystemExit(3)", "FAILED")]
)
def test_a_run_whose_ranks_never_began(tmp_path: Path, program: str, outcome: str) -> None:
    run = tmp_path / "run"
    command = [str(DISTDEBUG), "exec", "--allow-unwatched", "--run-dir", str(run)]
    command += ["--", sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)

    async def check() -> None:
        async with opened(run, a_year_later, (80, 24)) as driver:
            assert " ENDED " in driver.text
            assert outcome in driver.text.splitlines()[1]
            for view in VIEWS:
                await driver.press(view.key, "down", "tab", "home", "right")
                assert "reading ..." not in driver.text
            await driver.press("o")
            assert "no rank has left a record in this run" in driver.text
            await driver.press("d")
            assert driver.app.guard.kept == {}

    asyncio.run(check())

"""The terminal app in a real terminal, on a live run and afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdebug.record.reading.reader import FlightReader
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process
from fixtures import recorded
from tests.support.runs import DISTDEBUG, LIMIT_S
from tests.support.tmux import Terminal, needs_tmux
from tests.support.waiting import until

SCRIPT = """
import pathlib, time
import torch
import torch.distributed as dist

def step(tensor):
    dist.all_reduce(tensor)

dist.init_process_group("gloo")
tensor, here = torch.ones(4), pathlib.Path({here!r})
stop = torch.zeros(1)
while not stop:
    step(tensor)
    stop.fill_((here / "go").exists())
    dist.broadcast(stop, 0)
    time.sleep(0.01)
rank = dist.get_rank()
(here / f"fault{{rank}}").touch()
if rank == 1:
    dist.broadcast(tensor, 0)
else:
    step(tensor)
"""
SEEN_WITHIN_S = 5.0
"""On two idle cores it is a second; the bound holds on a crowded machine, too."""


@needs_tmux
@pytest.mark.long
def test_a_live_run_from_the_first_screen_to_the_verdict(tmp_path: Path) -> None:
    script, directory = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.format(here=str(tmp_path)))
    command = [str(DISTDEBUG), "run", "--tui", "-n", "3", "--run-dir", str(directory), str(script)]
    with Terminal(command, tmp_path) as terminal:
        terminal.until("LIVE", "nothing wrong so far", "calls/s", "3 ranks", "train.py:")
        terminal.press("S")
        terminal.until("Take the stacks of all ranks now?")
        terminal.press("y")
        terminal.until("took the stacks of 3 of 3 ranks")
        terminal.press("s")
        terminal.until("MainThread of ranks", "<module> (train.py:")
        (tmp_path / "go").touch()
        terminal.until("MISMATCH", "<- look here", "▸ rank 1", "broadcast(src=0")
        seen_s = time.time()
        fault_s = max((tmp_path / f"fault{rank}").stat().st_mtime for rank in range(3))
        assert seen_s - fault_s < SEEN_WITHIN_S
        print(f"the verdict was on the screen {seen_s - fault_s:.2f} s after the fault")
        terminal.until("ENDED", "exit code 91")
        terminal.press("q")
        text = terminal.until("CODE 91")
        assert "MISMATCH" in text
        assert "evidence:" in text
    report = json.loads((directory / "report.json").read_text())
    assert report["outcome"] == "op_mismatch"

    with Terminal([str(DISTDEBUG), "tui", str(directory)], tmp_path, (80, 24)) as terminal:
        terminal.until("ENDED", "MISMATCH, exit code 91", "▸1")
        terminal.press("c")
        terminal.until("≠ rank 1")
        terminal.press("C-c")
        terminal.until("CODE 0")


@needs_tmux
@pytest.mark.long
def test_a_rank_is_stopped_talked_to_and_let_go(tmp_path: Path) -> None:
    script, directory = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.format(here=str(tmp_path)))
    command = [str(DISTDEBUG), "run", "--tui", "-n", "2", "--run-dir", str(directory), str(script)]
    with Terminal(command, tmp_path, extra={"HOME": str(tmp_path)}) as terminal:
        terminal.until("LIVE", "calls/s", "2 ranks", " 1     ")
        terminal.press("Down", "A")
        terminal.until("rank 1 is not at a breakpoint; B stops it")
        terminal.press("B")
        terminal.until("Stop rank 1 at its next line")
        terminal.press("y")
        terminal.until(" 1     breakpoint")
        terminal.press("A")
        terminal.until("Open the prompt of rank 1 here?")
        terminal.press("y")
        terminal.until("(rank 1)", "continue lets it go on", "train.py(")
        terminal.press("p 40 + dist.get_rank() + 1", "Enter")
        terminal.until("\n42\n")
        terminal.press("C-c")  # gives up the line; neither the run nor the app end of it
        terminal.press("n", "Enter")
        terminal.until("train.py(")
        calls = _calls(directory)
        terminal.press("c", "Enter")
        terminal.until("LIVE", "Overview", "nothing wrong so far")
        until(lambda: " 1     breakpoint" not in terminal.text)
        until(lambda: _calls(directory) > calls + 10)
        (tmp_path / "go").touch()
        terminal.until("ENDED", "MISMATCH, exit code 91")
        terminal.press("q")
        terminal.until("CODE 91")


def _calls(directory: Path) -> int:
    """Of rank 1, so far."""
    return FlightReader(directory / "ranks" / "1.flight").view(Process(alive=True)).calls


@needs_tmux
@pytest.mark.long
def test_a_rank_goes_on_and_a_planned_fault_happens_at_a_key(tmp_path: Path) -> None:
    script, directory = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.format(here=str(tmp_path)))
    fault = "kill(rank=1) @ all_reduce#99999999"
    words = ["--tui", "-n", "2", "--inject", fault, "--run-dir", str(directory), str(script)]
    with Terminal([str(DISTDEBUG), "run", *words], tmp_path, (80, 24)) as terminal:
        terminal.until("LIVE", "calls/s", "2 ranks", " 1     ")
        terminal.press("Down", "B")
        terminal.until("Stop rank 1 at its next line")
        terminal.press("y")
        terminal.until(" 1     breakpoint")
        calls = _calls(directory)
        terminal.press("C")
        terminal.until("Let rank 1 go on from its breakpoint?", "a all ranks")
        terminal.press("y")
        terminal.until("rank 1 goes on")
        until(lambda: _calls(directory) > calls + 10)
        terminal.press("I")
        terminal.until("Which fault of the plan is to happen now?", fault)
        terminal.press("Enter")
        terminal.until("RANK DIED, exit code 94", "▸1")
        terminal.press("q")
        terminal.until("CODE 94")


@needs_tmux
@pytest.mark.long
def test_a_run_that_is_stopped_from_the_app(tmp_path: Path) -> None:
    script, directory = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.format(here=str(tmp_path)))
    command = [str(DISTDEBUG), "run", "--tui", "-n", "2", "--run-dir", str(directory), str(script)]
    with Terminal(command, tmp_path) as terminal:
        terminal.until("LIVE", "calls/s")
        terminal.press("X")
        terminal.until("Stop the run?")
        terminal.press("y")
        terminal.until("ENDED", "INTERRUPTED, exit code 130")
        terminal.press("q")
        terminal.until("CODE 130")


@needs_tmux
@pytest.mark.long
def test_what_a_launcher_prints_does_not_disturb_the_app(tmp_path: Path) -> None:
    script, parent = tmp_path / "train.py", tmp_path / "parent.py"
    script.write_text(SCRIPT.format(here=str(tmp_path)))
    parent.write_text(
        "import subprocess, sys, threading\n"
        "ranks = ['-m', 'torch.distributed.run', '--nproc-per-node', '2', 'train.py']\n"
        "process = subprocess.Popen([sys.executable, *ranks])\n"
        "while True:\n"
        "    print('the launcher speaks', flush=True)\n"
        "    try:\n"
        "        raise SystemExit(process.wait(0.1))\n"
        "    except subprocess.TimeoutExpired:\n"
        "        pass\n"
    )
    run = [str(DISTDEBUG), "exec", "--tui", "--run-dir", str(tmp_path / "run"), "--"]
    with Terminal([*run, sys.executable, "parent.py"], tmp_path) as terminal:
        assert "speaks" not in terminal.until("LIVE", "calls/s")
        (tmp_path / "go").touch()
        assert "speaks" not in terminal.until("ENDED", "exit code 91")
        terminal.press("q")
        terminal.until("SignalException", "MISMATCH", "CODE 91")  # torchrun's last words, too


@needs_tmux
@pytest.mark.long
def test_the_run_goes_on_when_the_app_is_left(tmp_path: Path) -> None:
    script, directory = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.format(here=str(tmp_path)) + "\nprint('never')\n")
    command = [str(DISTDEBUG), "run", "--tui", "-n", "2", "--run-dir", str(directory), str(script)]
    with Terminal(command, tmp_path) as terminal:
        terminal.until("LIVE", "calls/s")
        terminal.press("q")
        (tmp_path / "go").touch()
        terminal.until("MISMATCH", "CODE 91")


def test_without_a_terminal_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    RunDirectory.create(tmp_path / ".distdebug").close()
    for arguments in (["tui"], ["run", "--tui", "-n", "1", "x.py"]):
        done = subprocess.run(
            [str(DISTDEBUG), *arguments],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "needs a terminal" in done.stderr
    assert len(list((tmp_path / ".distdebug").glob("[0-9l]*"))) == 2  # one run, `latest`


@needs_tmux
def test_what_the_locale_lacks_takes_one_cell(tmp_path: Path) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run").path
    ascii_only = ["LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"]
    command = ["env", *ascii_only, str(DISTDEBUG), "tui", str(run)]
    with Terminal(command, tmp_path, (80, 24)) as terminal:
        text = terminal.until("rank?  state ", "computing")
        assert "?" * 80 in text.splitlines(), "the line below the rows, as wide as ever"
        assert "\\u2" not in text
        terminal.press("q")

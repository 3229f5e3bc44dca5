"""At the end of a run, or of a test in ranks, whoever shows what they have printed is waited for as
long as it is at work, however seldom it is given a core, and no longer."""

from __future__ import annotations

import io
import itertools
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.supervisor.output import follower, process
from distdebug.supervisor.output.follower import OutputFollower
from distdebug.supervisor.output.process import OutputProcess

DRAIN = """
import socket, time
control = socket.socket(fileno=0)
while b"finish" not in control.recv(1 << 17):
    pass
{finishes}
control.send(b'{{"finished": true}}')
while control.recv(1 << 17):
    pass
"""
"""Says nothing before it has finished."""
WORKS = "until_s = time.process_time() + 0.5\nwhile time.process_time() < until_s: pass"
WAITS = "time.sleep(600)"
STALLED_S, LIMIT_S = 0.2, 100.0


def ended(how: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """The exit code of a drain that finishes in this way, and how long that was waited for."""
    words = [sys.executable, "-I", "-S", "-c", DRAIN.format(finishes=how)]
    monkeypatch.setattr(process, "command", lambda *_, **__: words)
    output = OutputProcess(directory, 1.0, colour=False, on_lost=print)
    began_s = time.monotonic()
    output.finish(LIMIT_S, STALLED_S)
    took_s = time.monotonic() - began_s
    return output._process.wait(60), took_s


def test_one_that_works_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that waits for a core at each step."""
    code, _ = ended(WORKS, tmp_path, monkeypatch)
    assert code == 0, "its output is lost"


def test_one_that_waits_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    code, took_s = ended(WAITS, tmp_path, monkeypatch)
    assert code == -signal.SIGKILL
    assert took_s < LIMIT_S


class Slow(io.StringIO):
    """Takes a moment for each piece."""

    def write(self, text: str) -> int:
        time.sleep(0.5)
        return super().write(text)


def test_a_process_that_was_not_run_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two looks at the clock."""
    clock = SimpleNamespace(monotonic=itertools.count(0, 1000).__next__, time_ns=time.time_ns)
    monkeypatch.setattr(follower, "time", clock)
    lines = [f"line {number}" for number in range(10)]
    (tmp_path / "0.out").write_text("".join(f"{line}\n" for line in lines))
    shown = Slow()
    follows = OutputFollower(tmp_path, shown, io.StringIO())
    follows.start()
    follows.finish(timeout_s=1e9, stalled_s=60.0)
    assert shown.getvalue().splitlines() == [f"[rank 0] {line}" for line in lines]


class Stuck(io.StringIO):
    """Takes nothing until it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def write(self, _text: str) -> int:
        self.over.wait()
        return 0


def test_a_terminal_that_takes_nothing(tmp_path: Path) -> None:
    """The twin."""
    (tmp_path / "0.out").write_text("a line\n")
    stuck = Stuck()
    follows = OutputFollower(tmp_path, stuck, io.StringIO())
    follows.start()
    began_s = time.monotonic()
    follows.finish(LIMIT_S, STALLED_S)
    took_s = time.monotonic() - began_s
    stuck.over.set()
    assert took_s < LIMIT_S

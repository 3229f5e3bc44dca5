"""The end of a run waits for a drain that is at work, however seldom it is given a core, and for no
other."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from debugger.supervisor.output import process
from debugger.supervisor.output.process import OutputProcess

DRAIN = """
import socket, time, types
control = socket.socket(fileno=0)
while b"finish" not in control.recv(1 << 17):
    pass
{finishes}
control.send(b'{{"finished": true}}')
while control.recv(1 << 17):
    pass
d = types.SimpleNamespace(main=int)
"""
"""Says nothing before it has finished."""
WORKS = "until_s = time.process_time() + 0.5\nwhile time.process_time() < until_s: pass"
WAITS = "time.sleep(600)"
STALLED_S, LIMIT_S = 0.2, 100.0


def ended(how: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """The exit code of a drain that finishes in this way, and how long that was waited for."""
    monkeypatch.setattr(process, "_PROGRAM", f"exec({DRAIN.format(finishes=how)!r})")
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

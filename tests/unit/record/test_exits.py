"""What parents tell of their children's ends, and of the signals that they sent them."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from distdebug.record.exits import ExitLog, tell_asked

PID = 4711


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exits.jsonl"


def ended_by(path: Path, number: int) -> None:
    with path.open("a") as log:
        log.write(json.dumps({"pid": PID, "status": number, "time_ns": time.time_ns()}) + "\n")


def read(path: Path, started_ns: int = 0) -> tuple[int | None, bool]:
    log = ExitLog(path)
    log.poll()
    found = log.find(PID, started_ns)
    assert found is not None
    return found.signal, found.asked


def test_ended_by_the_signal_that_its_parent_has_sent(path: Path) -> None:
    tell_asked(path, PID, signal.SIGTERM)
    ended_by(path, signal.SIGTERM)
    assert read(path) == (signal.SIGTERM, True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, 0])
def test_it_ended_otherwise(path: Path, number: int) -> None:
    tell_asked(path, PID, signal.SIGTERM)
    ended_by(path, number)
    assert read(path) == (number or None, False)


def test_another_process_of_that_number_was_asked(path: Path) -> None:
    tell_asked(path, PID, signal.SIGTERM)
    started_ns = time.time_ns()
    ended_by(path, signal.SIGTERM)
    assert read(path, started_ns) == (signal.SIGTERM, False)


def test_lines_that_cannot_be_read_are_left_out(path: Path) -> None:
    ended_by(path, signal.SIGTERM)
    now = time.time_ns()
    rows = [{"asked": 15}, {"pid": PID, "asked": "x", "time_ns": now}, {"pid": PID, "asked": [15]}]
    with path.open("a") as log:
        log.writelines(json.dumps(row) + "\n" for row in rows)
    assert read(path) == (signal.SIGTERM, False)

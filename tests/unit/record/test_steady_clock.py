"""The times of a run on this host come from the monotonic clock, whatever the wall clock does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from distdebug.record import steady_clock
from distdebug.record.exits import ExitLog

STEP_NS = 120 * 10**9


def test_it_does_not_step(monkeypatch: pytest.MonkeyPatch) -> None:
    before_ns = steady_clock.now_ns()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + STEP_NS)
    assert 0 <= steady_clock.now_ns() - before_ns < STEP_NS // 2


@pytest.mark.parametrize("step_ns", [STEP_NS, -STEP_NS])
def test_an_exit_that_was_told_after_a_step_is_this_process_s(step_ns: int, tmp_path: Path) -> None:
    path = tmp_path / "exits.jsonl"
    started_ns = steady_clock.now_ns()
    line = {
        "pid": 7,
        "status": 0,
        "time_ns": time.time_ns() + step_ns,
        "monotonic_ns": time.monotonic_ns(),
    }
    path.write_text(json.dumps(line) + "\n")
    steady, other = ExitLog(path, steady=True), ExitLog(path)
    for log in (steady, other):
        log.poll()
    found = steady.find(7, started_ns)
    assert found is not None
    assert 0 <= found.time_ns - started_ns < STEP_NS // 2
    assert (other.find(7, started_ns) is None) == (step_ns < 0), "of a run from elsewhere"

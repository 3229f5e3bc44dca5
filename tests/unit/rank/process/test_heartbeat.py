"""Which of the threads that stand still wait for something, as the heartbeat infers it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.rank.process import heartbeat
from distdebug.system.proc import times_slept

STATUS = """Name:\tpython
State:\t{}
voluntary_ctxt_switches:\t7
nonvoluntary_ctxt_switches:\t5
"""


@pytest.mark.parametrize(
    ("state", "slept"), [("S (sleeping)", 12), ("R (running)", None), ("T (stopped)", None)]
)
def test_who_gets_no_core_does_not_wait_for_a_call(
    state: str, slept: int | None, tmp_path: Path
) -> None:
    """Its context switches stand still as well: what it waits for is a core."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(STATUS.format(state))
    assert times_slept(7, tmp_path) == slept


def test_of_a_thread_that_is_not_there_nobody_can_tell(tmp_path: Path) -> None:
    assert times_slept(7, tmp_path) is None


def test_a_thread_that_waits_for_another_sleeps() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    native_id = thread.native_id or 0
    try:
        while times_slept(native_id) is None:
            pass
        first = times_slept(native_id)
        assert first is not None
        assert first > 0
    finally:
        go.set()
        thread.join()


class Waiting:
    """The main thread waits for a thread, whose frames and waits the test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main, self.other = SimpleNamespace(), sys._getframe()
        found = {threading.main_thread().ident: self.main, 5: self.other}
        monkeypatch.setattr(heartbeat.frames, "of_thread", found.get)
        monkeypatch.setattr(heartbeat.frames, "awaited", self._awaited)
        self.waiting: set[int] = set()
        writer = SimpleNamespace(is_waiting=self.waiting.__contains__)
        recorder: Any = SimpleNamespace(writer=writer)
        unwaited: Any = None
        self.beats = heartbeat.Heartbeat(recorder, unwaited, lambda: None)

    def _awaited(self, frame: object) -> int | None:
        return 5 if frame is self.main else None


def test_a_rank_stands_where_the_thread_does_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Waiting(monkeypatch)
    assert case.beats._standing() is case.other
    case.waiting.add(5)  # then that thread's line is known with its call
    assert case.beats._standing() is case.main


def test_a_thread_of_nobody_that_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Waiting(monkeypatch)
    monkeypatch.setattr(heartbeat.call_site, "find", lambda _frame, of_another: None)
    assert case.beats._standing() is case.main

"""A process that is asked to stop: at its next line, before its next call, once, or not at all."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from distdebug.rank.breakpoints.stops import Breakpoints, OnDemand
from distdebug.rank.limits import ARM_AFTER_S
from distdebug.rank.process.main_thread import SIGNAL, MainThread
from distdebug.record.requests import breakpoints, supervision

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="this process is traced")


class Asked:
    """The breakpoints of this process, whose stops are only noted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stopped: list[str] = []
        self.clock_s = 0.0
        self.looks: list[Callable[[], None] | None] = []
        self.allowed = self.resumed = 0
        self.owner = os.getpid()
        self.main_thread = MainThread()
        self.main_thread.observe()
        self.demand = OnDemand(cast(Breakpoints, self), self.looks.append)
        self.main_thread.on_return(self.demand.trace_from)

    def stop(self, frame: FrameType) -> None:
        self.stopped.append(frame.f_code.co_name)
        self.demand.fulfilled()

    def allow(self) -> None:
        self.allowed += 1

    def trace_again(self, _frame: FrameType) -> None:
        self.resumed += 1

    def ask(self) -> None:
        """Somebody asks; heartbeats see it, and see it still when the time has come."""
        breakpoints.ask_to_stop(self.directory, os.getpid())
        self.beat(0.0, 1.01 * ARM_AFTER_S)

    def beat(self, *after_s: float) -> None:
        """Heartbeats, in a thread of their own, so long after a moment."""

        def look() -> None:
            for at_s in after_s or (0.0,):
                self.clock_s = 100.0 + at_s
                self.demand.look()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()


@pytest.fixture(name="asked")
def _asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    kept = signal.getsignal(SIGNAL)
    made = Asked(tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: made.clock_s)
    yield made
    monkeypatch.undo()
    sys.settrace(None)
    signal.signal(SIGNAL, kept)


def some_lines() -> int:
    number = 1
    number += 1
    return number


def test_nobody_asks(asked: Asked) -> None:
    asked.beat()
    assert some_lines() == 2
    assert (asked.stopped, asked.looks, asked.allowed) == ([], [], 0)
    assert sys.gettrace() is None


def test_the_next_line_of_the_users_stops_once(asked: Asked) -> None:
    asked.ask()
    assert some_lines() == 2
    assert len(asked.stopped) == 1
    assert asked.stopped[0] in (
        "ask",
        "beat",
        "some_lines",
        "test_the_next_line_of_the_users_stops_once",
    )
    assert sys.gettrace() is None
    assert asked.allowed == 1
    assert [look is None for look in asked.looks] == [False, True]  # a call costs nothing again
    assert not supervision.any_asked(asked.directory)
    asked.beat()
    assert some_lines() == 2
    assert len(asked.stopped) == 1


def test_the_next_call_of_any_thread_stops_once(asked: Asked) -> None:
    thread = threading.Thread(target=asked.ask)
    traced: list[Any] = []
    sys.settrace(lambda *_: traced.append(1))  # another tool's, which keeps the main thread
    try:
        thread.start()
        thread.join()
        some_lines()
        assert asked.stopped == []
        look = asked.looks[-1]
        assert look is not None
        look()
        look()
        before = len(traced)
        some_lines()
        assert len(traced) > before
    finally:
        sys.settrace(None)
    assert asked.stopped == ["test_the_next_call_of_any_thread_stops_once"]
    assert asked.looks[-1] is None


def test_others_get_the_time_to_see_it(asked: Asked) -> None:
    breakpoints.ask_to_stop(asked.directory, os.getpid())
    asked.beat(0.0, 0.9 * ARM_AFTER_S)
    assert some_lines() == 2
    assert (asked.stopped, asked.looks) == ([], [])


def test_a_request_that_is_taken_back(asked: Asked) -> None:
    traced: list[Any] = []
    sys.settrace(lambda *_: traced.append(1))  # so that it is not met at once
    try:
        asked.ask()
    finally:
        sys.settrace(None)
    supervision.withdraw_request(asked.directory, os.getpid())
    asked.beat()
    assert some_lines() == 2
    assert asked.stopped == []
    assert [look is None for look in asked.looks] == [False, True]


def test_a_request_that_is_taken_back_before_the_next_heartbeat(asked: Asked) -> None:
    """Whoever took it back was told that the rank will not be stopped."""
    demand, before = asked.demand, sys.gettrace()
    breakpoints.ask_to_stop(asked.directory, os.getpid())
    demand._armed = True
    look = demand._before_call
    # On one line: the next one would be a stop.
    demand.trace_from(sys._getframe()), supervision.withdraw_request(asked.directory, os.getpid())
    assert some_lines() == 2
    look()
    assert (asked.stopped, asked.resumed) == ([], 1)
    assert sys.gettrace() is before


def test_a_trace_that_is_no_longer_wanted_gives_way(asked: Asked) -> None:
    """Another thread has stopped at its call: line breakpoints are looked at again."""
    demand = asked.demand
    demand._armed = True
    # On one line: the next one would be a stop.
    demand.trace_from(sys._getframe()), setattr(demand, "_armed", False)
    assert some_lines() == 2
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None
    assert (asked.stopped, asked.resumed) == ([], 1)


def test_a_forked_child_takes_the_request_away(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "owner", 1)
    asked.ask()
    assert some_lines() == 2
    assert (asked.stopped, asked.looks) == ([], [])
    assert not supervision.any_asked(asked.directory)

"""Which of the threads that stand still wait for something, as the heartbeat infers it."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdebug.rank.group import outstanding
from distdebug.rank.group.outstanding import UnwaitedWork
from distdebug.rank.group.tracked_work import TrackedWork
from distdebug.rank.process import heartbeat
from distdebug.rank.process.heartbeat import BEATS, ONLY_ASKS, Asking, Heartbeat
from distdebug.rank.torch_private import training
from distdebug.record.snapshot import Wait
from distdebug.system.proc import times_slept
from tests.support.waiting import until
from tests.unit.rank.group.test_outstanding import Case, Work, case
from tests.unit.record.test_flight import ALIVE, read

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


@pytest.mark.parametrize("initialized", [False, True])
def test_a_heartbeat_disturbs_no_capture(
    case: Case, monkeypatch: pytest.MonkeyPatch, initialized: bool
) -> None:
    """In its own thread, once CUDA is there: by default no thread may ask for an event while
    another one captures a graph."""
    set_by: list[tuple[bool, int]] = []

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
            is_main = threading.current_thread() is threading.main_thread()
            set_by.append((is_main, mode._obj.value))
            return 0

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(training.ctypes, "CDLL", Driver)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    beats = Heartbeat(case.recorder, UnwaitedWork(case.recorder), look)
    beats.start()
    until(lambda: looks >= 3, lambda: str(looks))
    beats.stop()
    assert set_by == ([(False, 1)] if initialized else [])


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


__all__ = ["case"]


class Asker:
    """A thread that asks when it is told to, and in between sleeps where it asks, or (`serves`)
    waits for something else."""

    def __init__(self, case: Case, serves: bool = False) -> None:
        self.case, self.work = case, Work()
        self.handle: TrackedWork = case.track(self.work, streams=False)
        self.asking = Asking(case.recorder)
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._python_queue: queue.Queue[int] = queue.Queue()
        self._times = 0
        self._serves = serves
        self._over = False
        self.thread = threading.Thread(target=self._serve if serves else self._ask)
        self.thread.start()

    def _ask(self) -> None:
        while self._go.acquire() and not self._over:
            for _ in range(self._times):
                self.handle.is_completed()
            self._done.release()

    def _serve(self) -> None:
        while times := self._python_queue.get():
            for _ in range(times):
                self.handle.is_completed()
            self._done.release()

    def asks(self, times: int = 1) -> None:
        self._times = times
        if self._serves:
            self._python_queue.put(times)
        else:
            self._go.release()
        self._done.acquire()

    def beats(self, count: int, times: int = 1) -> None:
        for _ in range(count):
            if times:
                self.asks(times)
            self.asking.beat(False)

    def waits(self) -> list[Wait]:
        found = read(self.case.author).view(ALIVE).waits
        return [wait for wait in found if wait.thread == self.thread.native_id]

    def close(self) -> None:
        self._over = True
        self._python_queue.put(0)
        self._go.release()
        self.thread.join()


@pytest.fixture
def asker(case: Case, request: pytest.FixtureRequest) -> Iterator[Asker]:
    made = Asker(case, serves=getattr(request, "param", False))
    yield made
    made.close()


def test_who_only_asks_waits(asker: Asker) -> None:
    asker.beats(BEATS)
    assert asker.waits() == []
    asker.beats(1)
    (wait,) = asker.waits()
    assert (wait.call, wait.inferred, wait.guessed, wait.asks) == (0, True, True, True)
    since_ns = wait.since_ns
    asker.beats(2 * BEATS)
    assert [one.since_ns for one in asker.waits()] == [since_ns]
    asker.work.over = True
    asker.beats(1)
    assert asker.waits() == []
    assert outstanding.asked == {}


def test_who_has_asked_once_does_not(asker: Asker) -> None:
    asker.asks()
    asker.beats(3 * BEATS, times=0)
    assert asker.waits() == []


def test_who_asks_no_more_does_not(asker: Asker) -> None:
    asker.beats(BEATS + 1)
    asker.beats(2 * BEATS, times=0)
    assert asker.waits() == []


def test_who_calls_meanwhile_does_not(asker: Asker) -> None:
    for _ in range(6):
        asker.beats(BEATS // 2)
        asker.case.author.call()
    assert asker.waits() == []


@pytest.mark.parametrize("asker", [True], indirect=True)
def test_who_serves_others_meanwhile_does_not(asker: Asker) -> None:
    asker.beats(3 * BEATS)
    assert asker.waits() == []


@pytest.mark.parametrize(("times", "waits"), [(1, 0), (ONLY_ASKS // BEATS + 1, 1)])
def test_who_computes_between_does_not(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, times: int, waits: int
) -> None:
    used_s = iter(range(100))
    monkeypatch.setattr(heartbeat, "_cpu_s", lambda _asked: next(used_s))
    asker.beats(2 * BEATS, times)
    assert len(asker.waits()) == waits


def test_what_is_known_of_the_main_thread_comes_first(case: Case) -> None:
    """It asks, and is seen idle below another call, say."""
    handle, looks = case.track(Work(), streams=False), Asking(case.recorder)
    handle.is_completed()
    asked = outstanding.asked[0]
    asked.ident = threading.main_thread().ident or 0
    looks.beat(True)
    assert list(read(case.author).view(ALIVE).waits) == []

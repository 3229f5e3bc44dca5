"""Who asks again and again whether a call is over waits for it; and who only asks now and then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from distdebug.rank.group import outstanding
from distdebug.rank.group.tracked_work import TrackedWork
from distdebug.rank.process import heartbeat
from distdebug.rank.process.heartbeat import BEATS, ONLY_ASKS, Asking
from distdebug.record.snapshot import Wait
from tests.unit.rank.group.test_gpu_completion import Case, Work, case
from tests.unit.record.test_flight import ALIVE, read

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

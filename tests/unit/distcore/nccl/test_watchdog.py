"""Which calls are over, which are late, what failed: decided without a clock or a thread."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from distcore.base import deadline
from distcore.base.deadline import Deadline
from distcore.errors import DeadlineExceeded, GroupFailed
from distcore.limits import RENEW_NS
from distcore.nccl.communicators import Comm
from distcore.nccl.device import GpuClock
from distcore.nccl.library import Library
from distcore.nccl.life import StreamWatch, Watchdog
from distcore.nccl.work import StreamWork
from tests.support.fake_nccl import core
from tests.support.fake_nccl.recording import FakeClock, RecordingDevice, SilentCommunicator


class Case:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.device = RecordingDevice(self.clock)
        self.device.lanes |= {"lane 1", "lane 2"}
        self.communicator = SilentCommunicator()
        library = Library(core)
        self.member = Comm(library, self.communicator, "group '0'", self.clock)
        self.failures: list[BaseException] = []
        self.peers: list[BaseException] = []
        self.watch = StreamWatch(
            lambda: [self.member],
            self.failures.append,
            lambda: self.peers[0] if self.peers else None,
            "group '0' (rank 2)",
        )
        self.times: dict[str, GpuClock] = {}

    def call(self, lane: str = "lane 1", limit_s: float = 10.0) -> StreamWork:
        deadline = Deadline(self.clock.now_s + limit_s)
        deadline.began, deadline.limit_s = self.clock.now_s, limit_s
        work = StreamWork(f"all_reduce(sum, {lane})", [], self.device, 0, deadline)
        started, ended = self.device.event(True), self.device.event(True)
        started.record(lane)
        ended.record(lane)
        work.launched(lane, started, ended, False)
        clock = self.times.setdefault(
            lane, GpuClock(self.device, 0, lambda: round(self.clock.now_s * 1e9))
        )
        self.watch.add(lane, work, clock)
        return work

    def run(self, work: StreamWork, lasts_s: float) -> None:
        self.device.reach(work.started)
        self.clock.now_s += lasts_s
        self.device.reach(work.ended)

    def look(self) -> None:
        for _ in range(2):  # the first sets the clock
            self.watch.look(self.clock.now_s)


def test_calls_that_are_over_end_in_their_order_with_their_times() -> None:
    case = Case()
    first, second = case.call(), case.call()
    case.look()
    assert not first.is_completed()
    case.run(first, 0.5)
    case.look()
    assert first.is_completed()
    assert first.times_ns() == (1_000_000_000_000, 1_000_500_000_000)
    assert second.times_ns() is None
    assert case.watch.pending == 1
    case.clock.now_s += 1
    case.run(second, 0.25)
    case.look()
    assert second.times_ns() == (1_001_500_000_000, 1_001_750_000_000)
    assert case.watch.pending == 0
    assert case.failures == []


def test_a_deadline_fails_the_group_and_names_the_call() -> None:
    case = Case()
    late, after = case.call(limit_s=5.0), case.call(limit_s=500.0)
    case.clock.now_s += 4.9
    case.look()
    assert case.failures == []
    case.clock.now_s += 0.2
    case.look()
    error = case.failures[0]
    assert isinstance(error, DeadlineExceeded)
    assert str(error).startswith(
        "all_reduce(sum, lane 1) of group '0' (rank 2) is not complete after 5 s: its communicator "
        "was aborted"
    )
    case.watch.give_up(error)
    for work in (late, after):
        with pytest.raises(DeadlineExceeded):
            work.wait()


def test_time_in_a_debugger_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.call(limit_s=5.0)
    monkeypatch.setattr(deadline, "_held_s", lambda began, now: 60.0)
    case.clock.now_s += 30
    case.look()
    assert case.failures == []
    case.clock.now_s += 40
    case.look()
    assert len(case.failures) >= 1


def test_an_error_that_nccl_finds_in_the_background_is_told() -> None:
    case = Case()
    case.call()
    case.communicator.results = [0]
    case.look()
    assert case.failures == []
    case.communicator.results = [6]
    case.look()
    said, _, words = str(case.failures[0]).partition(" (")
    assert said == "NCCL says of group '0': fake result 6: the last error"
    assert words == "Connection closed by peer)"


def test_a_gpu_that_does_not_answer_ends_the_group_not_the_watchdog() -> None:
    case = Case()
    work = case.call()
    case.look()
    case.device.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    case.look()
    assert "the GPU cannot be asked any more" in str(case.failures[0])
    assert "illegal memory access" in str(case.failures[0])
    case.watch.give_up(case.failures[0])
    with pytest.raises(GroupFailed, match="illegal memory access"):
        work.wait()


def test_what_another_rank_said_is_asked_for_once_a_second() -> None:
    case = Case()
    case.call()
    case.look()
    case.peers.append(GroupFailed("rank 1 gave up", 1))
    case.clock.now_s += 0.5
    case.look()
    assert case.failures == []
    case.clock.now_s += 0.6
    case.look()
    assert case.failures == [case.peers[0]]


def test_calls_that_were_over_are_not_failed_with_the_others() -> None:
    case = Case()
    over, not_over, elsewhere = case.call(), case.call(), case.call("lane 2")
    case.run(over, 0.1)
    case.watch.give_up(GroupFailed("aborted"))
    assert over.exception() is None
    assert isinstance(not_over.exception(), GroupFailed)
    assert isinstance(elsewhere.exception(), GroupFailed)
    assert case.watch.pending == 0


def test_the_clock_is_renewed_before_its_float_gets_coarse() -> None:
    clock = FakeClock()
    device = RecordingDevice(clock)
    times = GpuClock(device, 0, lambda: round(clock.now_s * 1e9))
    assert not times.known
    assert times.span_ns(device.event(True), device.event(True)) is None
    times.tick()
    times.tick()
    assert times.known
    before = len(device.events)
    times.tick()
    assert len(device.events) == before
    clock.now_s += RENEW_NS / 1e9 + 1
    times.tick()
    times.tick()
    assert len(device.events) == before + 1


def test_the_thread_looks_until_it_is_stopped() -> None:
    looks: list[float] = []
    looked = threading.Event()

    def look(now_s: float) -> None:
        looks.append(now_s)
        looked.set()

    device: Any = RecordingDevice()
    entered: list[int] = []
    device.entered = lambda index: entered.append(index) or contextlib.nullcontext()
    dog = Watchdog(look, device, lambda: 5.0, "dog of a test")
    dog.start(3)
    dog.start(3)
    assert looked.wait(10)
    dog.stop(5.0)
    assert set(looks) == {5.0}
    assert dog._thread is not None
    assert not dog._thread.is_alive()
    assert dog.capture_safe
    dog.start(0)  # not again
    assert entered == [3]  # else a look would make a context on the first device
    assert not dog._thread.is_alive()

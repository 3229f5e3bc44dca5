"""The handles of calls."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType

import pytest
import torch
from torch.futures import Future

from distcore.engine.call_queue import Callbacks
from distcore.engine.work import CallWork, JoinedWork, PendingWork, PostedWork
from distcore.errors import Aborted, DeadlineExceeded
from distcore.transports.matching import Posting

TENSORS = [torch.zeros(1)]


def pending() -> tuple[CallWork, Callable[..., None]]:
    work = PendingWork("all_reduce()", TENSORS, Callbacks("a group"))
    return work, work.finish


def posted() -> tuple[CallWork, Callable[..., None]]:
    posting = Posting(False, 1, 0, memoryview(b""), time.monotonic() + 60, "", "recv")
    return PostedWork("recv()", posting, TENSORS, None), posting.finish


KINDS = [pending, posted]


@pytest.mark.parametrize("make", KINDS)
def test_a_handle_is_done_when_its_call_is(make: Callable[[], tuple[CallWork, object]]) -> None:
    work, finish = make()
    future = work.get_future()
    assert not work.is_completed()
    with pytest.raises(DeadlineExceeded, match=r"not complete after the 0\.01 s given to wait"):
        work.wait(timedelta(seconds=0.01))
    finish(None)  # type: ignore[operator]
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert future.wait() == TENSORS


class TimeIsUpError(Exception):
    pass


@pytest.mark.parametrize("make", KINDS)
def test_a_wait_that_the_handler_of_a_signal_ends(
    make: Callable[[], tuple[CallWork, object]],
) -> None:
    """It raises what the handler raised, and the call goes on: nothing of it has come yet."""
    work, finish = make()

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise TimeIsUpError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeIsUpError):
            work.wait(timedelta(seconds=60))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not work.is_completed()
    finish(None)  # type: ignore[operator]
    assert work.wait()


@pytest.mark.parametrize("make", KINDS)
def test_a_call_that_fails(make: Callable[[], tuple[CallWork, object]]) -> None:
    work, finish = make()
    future = work.get_future()
    finish(Aborted("why"))  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(Aborted, match="why"):
            work.wait()
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(Exception, match="why"):
        future.wait()


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("error", [None, Aborted("why")])
def test_a_handle_is_not_done_before_the_profilers_record(
    error: Aborted | None, make: Callable[[], tuple[CallWork, object]]
) -> None:
    """A profiler that is stopped in between has freed what the record's end is written to."""
    work, finish = make()
    record: Future[None] = Future()
    work.recorded_until(record)
    work.get_future()  # whose thread, if it has one, must not wait for the record
    finish(error)  # type: ignore[operator]
    assert not work.is_completed()
    waited = threading.Event()

    def wait() -> None:
        try:
            work.wait()
        except Aborted:
            assert error is not None
        waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not waited.wait(0.1)
    record.set_result(None)
    thread.join(30)
    assert waited.is_set()
    assert work.is_completed()


def test_several_at_once() -> None:
    (one, finish_one), (other, finish_other) = pending(), posted()
    both = JoinedWork([one, other])
    future = both.get_future()
    finish_one(None)
    assert not both.is_completed()
    finish_other(Aborted("why"))
    assert both.is_completed()
    with pytest.raises(Aborted):
        both.wait()
    with pytest.raises(Exception, match="why"):
        future.wait()

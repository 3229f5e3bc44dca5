"""An asynchronous call enters the backend when its ranks agree, and the program need not wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distcore.engine.call_queue import CallQueue
from distdebug.rank.agreement.collectives import Deferral, DeferredWork, Grace
from distdebug.rank.limits import IN_CALL_S, MOST_IN_VAIN_S, SHORT_IN_CALL_S

LIMIT_S = 30.0
SHORT = timedelta(milliseconds=30)


class Backend:
    """A call of the backend that completes when it is told to."""

    def __init__(self) -> None:
        self.thread: str | None = None
        self.future: Any = torch.futures.Future()

    def __call__(self) -> Any:
        self.thread = threading.current_thread().name
        work: Any = Work()
        work.future = self.future
        return work


class Work(dist.Work):
    """What the backend returns."""

    future: Any

    def wait(self, _timeout: timedelta = timedelta(0)) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return bool(self.future.done())

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        """torch's own cannot give Python anything but an exception before 2.13."""

    def get_future(self) -> Any:
        return self.future


class Agreement:
    """Comes, or fails, when it is told to."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: BaseException | None = None

    def __call__(self) -> None:
        assert self.event.wait(LIMIT_S)
        if self.error is not None:
            raise self.error

    def comes(self, error: BaseException | None = None) -> None:
        self.error = error
        self.event.set()


@pytest.fixture
def turn() -> Iterator[CallQueue]:
    queue = CallQueue("test")
    yield queue
    assert queue.drain(LIMIT_S)
    queue.stop()


def test_soon_agreed_on_is_made_by_the_caller(turn: CallQueue) -> None:
    backend, agreement = Backend(), Agreement()
    agreement.comes()
    work = Deferral(agreement, partial(backend)).start(turn, LIMIT_S)
    assert isinstance(work, Work)
    assert backend.thread == threading.current_thread().name


def test_soon_refused_is_raised_at_the_call(turn: CallQueue) -> None:
    backend, agreement = Backend(), Agreement()
    agreement.comes(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        Deferral(agreement, partial(backend)).start(turn, LIMIT_S)
    assert backend.thread is None


def test_what_is_waited_in_vain_is_bounded() -> None:
    grace, first, other = Grace(), 1, 2
    assert grace.of(first) == IN_CALL_S
    grace.ended(first, True, IN_CALL_S)
    assert (grace.of(first), grace.of(other)) == (SHORT_IN_CALL_S, IN_CALL_S)
    grace.ended(first, True, SHORT_IN_CALL_S)
    assert grace.of(first) == SHORT_IN_CALL_S
    grace.ended(first, False, SHORT_IN_CALL_S)
    assert grace.of(first) == IN_CALL_S, "the others come in time again"
    waited_s = IN_CALL_S
    while grace.of(first) == IN_CALL_S:  # in vain and in time by turns
        grace.ended(first, True, IN_CALL_S)
        grace.ended(first, False, SHORT_IN_CALL_S)
        waited_s += IN_CALL_S
    assert waited_s <= MOST_IN_VAIN_S + IN_CALL_S
    assert grace.of(other) == SHORT_IN_CALL_S


def test_late_agreement(turn: CallQueue) -> None:
    """The handle waits for the agreement and then for the call."""
    backend, agreement = Backend(), Agreement()
    work = Deferral(agreement, partial(backend)).start(turn)
    assert isinstance(work, DeferredWork)
    assert not work.is_completed()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(SHORT)
    future = work.get_future()
    agreement.comes()
    assert turn.drain(LIMIT_S)
    assert backend.thread not in (None, threading.current_thread().name)
    assert not work.is_completed()
    assert not future.done()
    backend.future.set_result([torch.ones(2)])
    assert work.wait()
    assert work.wait(timedelta(seconds=LIMIT_S))
    assert work.is_completed()
    assert future.wait()[0].tolist() == [1.0, 1.0]
    assert work.get_future() is backend.future


def test_late_refusal(turn: CallQueue) -> None:
    backend, agreement = Backend(), Agreement()
    work = Deferral(agreement, partial(backend)).start(turn)
    future = work.get_future()
    agreement.comes(ValueError("no"))
    for wait in (work.wait, work.synchronize, work.result):
        with pytest.raises(ValueError, match="no"):
            wait()
    with pytest.raises(RuntimeError, match="ValueError: no"):
        future.wait()  # as C++ gets it
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), ValueError)
    assert backend.thread is None


def test_the_backend_refuses_late(turn: CallQueue) -> None:
    def refuse() -> None:
        raise TypeError("not this")

    agreement = Agreement()
    work = Deferral(agreement, partial(refuse)).start(turn)
    agreement.comes()
    with pytest.raises(TypeError, match="not this"):
        work.wait()


def test_calls_enter_in_their_order(turn: CallQueue) -> None:
    """A synchronous call behind a deferred one has its turn after it."""
    order: list[str] = []
    agreement = Agreement()
    Deferral(agreement, partial(order.append, "first")).start(turn)
    second = Agreement()
    second.comes()
    Deferral(second, partial(order.append, "second")).start(turn)
    threading.Timer(0.05, agreement.comes).start()
    turn.enter()
    order.append("third")
    turn.leave()
    assert order == ["first", "second", "third"]


def test_made_by_another_thread_as_by_the_caller(turn: CallQueue) -> None:
    """With its grad mode and inference mode."""
    weight = torch.nn.Parameter(torch.ones(2))
    agreement = Agreement()

    def backend() -> Any:
        weight.div_(2)  # only without grad
        return Backend()()

    with torch.no_grad():
        work = Deferral(agreement, partial(backend)).start(turn)
    agreement.comes()
    assert turn.drain(LIMIT_S)
    assert work.exception() is None
    assert weight.tolist() == [0.5, 0.5]


def test_an_interruption_when_all_have_agreed(turn: CallQueue) -> None:
    """The turn is given back."""
    backend, agreement = Backend(), Agreement()
    agreement.comes()
    deferral = Deferral(agreement, partial(backend))
    wait = deferral._agreed.wait

    def interrupted(_timeout: float) -> bool:
        assert wait(LIMIT_S)
        raise KeyboardInterrupt

    deferral._agreed.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        deferral.start(turn)
    assert turn.drain(LIMIT_S)
    assert backend.thread is None


def test_an_interrupted_call_was_not_made(turn: CallQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, agreement = Backend(), Agreement()
    deferral = Deferral(agreement, partial(backend))

    def interrupted(_timeout: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(deferral._agreed, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        deferral.start(turn)
    agreement.comes()
    assert turn.drain(LIMIT_S)
    assert backend.thread is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interruption_as_soon_as_the_turn_has_the_call(
    turn: CallQueue, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The turn does not wait for the caller, which has gone; the end of a process makes no call."""
    backend, agreement = Backend(), Agreement()
    submit = turn.submit

    def interrupted(job: Callable[[], None]) -> None:
        submit(job)
        signal.raise_signal(signal.SIGUSR1)

    def handler(_number: int, _frame: object) -> None:
        raise error

    monkeypatch.setattr(turn, "submit", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(error):
            Deferral(agreement, partial(backend)).start(turn)
    finally:
        signal.signal(signal.SIGUSR1, before)
    agreement.comes()
    assert turn.drain(LIMIT_S)
    assert (backend.thread is None) == (error is KeyboardInterrupt)


def test_who_waits_makes_the_call(turn: CallQueue) -> None:
    """What a profiler sees belongs to a thread."""
    backend, agreement = Backend(), Agreement()
    deferral = Deferral(agreement, partial(backend))
    work = deferral.start(turn)
    backend.future.set_result([])
    wait = deferral._agreed.wait

    def waits(timeout_s: float | None) -> bool:
        agreement.comes()
        return wait(timeout_s)

    deferral._agreed.wait = waits  # type: ignore[method-assign]
    assert work.wait()
    assert backend.thread == threading.current_thread().name


@pytest.mark.parametrize("agreed", [False, True])
def test_an_interrupted_wait(turn: CallQueue, agreed: bool) -> None:
    """The call is made all the same, for the other ranks make it."""
    backend, agreement = Backend(), Agreement()
    deferral = Deferral(agreement, partial(backend))
    work = deferral.start(turn)
    wait = deferral._agreed.wait

    def interrupted(_timeout: float | None) -> bool:
        if agreed:
            agreement.comes()
            assert wait(LIMIT_S)
        raise KeyboardInterrupt

    deferral._agreed.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    deferral._agreed.wait = wait  # type: ignore[method-assign]
    agreement.comes()
    backend.future.set_result([])
    assert work.wait()
    assert backend.thread is not None

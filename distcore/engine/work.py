"""The handles of calls: one that is done already, one of the group's queue, one of the mailbox.

All are torch's Work: DDP's reducer, functional collectives and compiled code wait for them in C++.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock
from typing import Any

from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from ..base.background_thread import BackgroundThread
from ..errors import DeadlineExceeded
from .call_queue import Callbacks, level

NO_TIMEOUT = timedelta(0)
"""What C++ passes where the caller of `wait` gave no timeout: the call's own deadline holds."""


def again(error: BaseException) -> BaseException:
    """A copy to raise: an error that is raised in several threads would gather all their frames."""
    try:
        twin = copy.copy(error)
    except Exception:  # a user's own exception type may not be copyable
        return error
    twin.__cause__ = error.__cause__
    return twin


def too_late(what: str, timeout: timedelta) -> DeadlineExceeded:
    """Returns the error of a wait whose own time is up."""
    return DeadlineExceeded(
        f"{what} is not complete after the {timeout.total_seconds():g} s given to wait(); "
        f"it goes on"
    )


class CallWork(Work):
    """The base of all handles; the subclasses say when the call is over."""

    _error: BaseException | None = None
    _record: Any = None

    def __init__(self, text: str, tensors: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.text = text
        self._tensors = tensors

    def recorded_until(self, record: Any) -> None:
        """The profiler's record of this call ends when this future is done; no handle is before. A
        profiler that is stopped earlier has freed the memory that the end is written to."""
        self._record = record

    def _record_is_over(self) -> bool:
        return self._record is None or self._record.done()

    def _end_record(self) -> None:
        if self._record is not None:
            try:
                self._record.wait()
            except Exception:
                pass  # the call's own error, which the handle raises itself

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the call; True. Raises the call's error; DeadlineExceeded when `timeout` is
        over first, and then the call itself goes on."""
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        """Why the call failed; None while it has not."""
        return self._error

    def result(self) -> list[Tensor]:
        return list(self._tensors)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        raise ValueError("only a receive from any source has a source rank")

    def _get_duration(self) -> float:
        raise NotImplementedError("this backend does not time its calls: use torch.profiler")

    def record_future(self) -> Any:
        """Returns a future for the profiler's record: done as soon as the call is, whatever other
        callbacks wait for."""
        return self.get_future()

    def get_future_result(self) -> Any:
        """A future of 0: the number torch gives success."""
        return self.get_future().then(_succeeded)


def _succeeded(future: Any) -> int:
    future.value()
    return 0


class FinishedWork(CallWork):
    """The handle of a call that was complete when it returned."""

    def __repr__(self) -> str:
        return "<FinishedWork: done>"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:  # noqa: ARG002 - torch's signature
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Future[list[Tensor]] = Future()
        future.set_result([])
        return future


FINISHED = FinishedWork("")
"""Shared by all calls that the caller waited for: nobody asks them for a result."""


class PendingWork(CallWork):
    """The handle of a call in the group's queue, which calls `finish` once. `threads` run what
    futures' users want done then: the group's own thread is needed for the next call."""

    def __init__(self, text: str, tensors: Sequence[Tensor], threads: Callbacks) -> None:
        super().__init__(text, tensors)
        self._threads = threads
        self._level = level()
        self._done = False
        self._lock = Lock()
        self._over = Lock()  # held until the call is over: waiting for it ends early on a signal
        self._over.acquire()
        self.run_here: Callable[[], bool] | None = None
        """Runs the call on this thread, if nobody has begun it: whether it did."""
        self._callbacks: list[Callable[[], None]] = []
        self._quick: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "pending" if not self._done else "failed" if self._error else "done"
        return f"<PendingWork {self.text}: {state}>"

    def finish(self, error: BaseException | None) -> None:
        """The call is over."""
        with self._lock:
            self._error = error
            self._done = True
            self.run_here = None  # it refers to this handle
            callbacks, self._callbacks = self._callbacks, []
            quick, self._quick = self._quick, []
        self._over.release()
        for callback in quick:
            callback()
        if callbacks:
            self._threads.run(self._level, callbacks)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call it when the call is over, on another thread; here and at once if it is."""
        self._at_end(self._callbacks, callback)

    def _at_end(self, waiting: list[Callable[[], None]], callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._done:
                waiting.append(callback)
                return
        callback()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if not self._done:
            if timeout > NO_TIMEOUT:
                if not self._over.acquire(timeout=timeout.total_seconds()):
                    raise too_late(self.text, timeout)
                self._over.release()
            elif (run_here := self.run_here) is None or not run_here():
                self._over.acquire()
                self._over.release()
        self._end_record()
        if self._error is not None:
            raise again(self._error)
        return True

    def is_completed(self) -> bool:
        return self._done and self._record_is_over()

    def get_future(self) -> Any:
        return as_future(self, self.on_end)

    def record_future(self) -> Any:
        return as_future(self, lambda callback: self._at_end(self._quick, callback))


class PostedWork(CallWork):
    """The handle of a message in the mailbox, whose state is `posting` (see `matching.Posting`);
    `arrived` is called once, before it counts as done."""

    def __init__(
        self,
        text: str,
        posting: Any,
        tensors: Sequence[Tensor],
        arrived: Callable[[], None] | None,
    ) -> None:
        Work.__init__(self)  # a message has one handle each: its constructor counts
        self.text = text
        self._tensors = tensors
        self._posting = posting
        self._arrived = arrived
        self._lock = Lock()

    def __repr__(self) -> str:
        posting = self._posting
        state = "pending" if not posting.done else "failed" if posting.error else "done"
        return f"<PostedWork {self.text}: {state}>"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        try:
            self._wait_for_message(timeout)
        finally:
            if self._record is not None and self._posting.done:
                self._end_record()
        return True

    def _wait_for_message(self, timeout: timedelta = NO_TIMEOUT) -> None:
        posting = self._posting
        given_s = timeout.total_seconds() if timeout > NO_TIMEOUT else None
        try:
            in_time = posting.wait(given_s)
        except Exception as error:
            if error is not posting.error:
                raise  # the handler of a signal has raised it: nothing has come yet
            in_time = True  # raised below, as a copy
        if not in_time:
            raise too_late(self.text, timeout)
        if posting.error is not None:
            raise again(posting.error)
        if self._arrived is not None:
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, None
            if arrived is not None:
                arrived()

    def is_completed(self) -> bool:
        posting = self._posting
        if not posting.done:
            return False
        if self._arrived is not None and posting.error is None:
            self._settle()
        return self._record_is_over()

    def exception(self) -> BaseException | None:
        return self._posting.error  # type: ignore[no-any-return]

    def result(self) -> list[Tensor]:
        return list(self._tensors[:1])

    def _source_rank(self) -> int:
        return self._posting.source  # type: ignore[no-any-return]

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call it when the message is through; a thread waits for it."""

        def watch() -> None:
            try:
                self._wait_for_message()
            except Exception:
                pass  # the callback asks for the error
            callback()

        BackgroundThread(watch, "distcore message future").start()

    def get_future(self) -> Any:
        return as_future(self, self.on_end)


class JoinedWork(CallWork):
    """The handle of several calls that were started together."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__("")
        self._works = works

    def __repr__(self) -> str:
        done = sum(work.is_completed() for work in self._works)
        return f"<JoinedWork: {done} of {len(self._works)} done>"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        errors = (work.exception() for work in self._works)
        return next((error for error in errors if error is not None), None)

    def result(self) -> list[Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call it when all are over."""
        left = [len(self._works)]
        lock = Lock()

        def one_less() -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                callback()

        for work in self._works:
            work.on_end(one_less)

    def get_future(self) -> Any:
        return as_future(self, self.on_end) if self._works else FINISHED.get_future()


def as_future(work: CallWork, on_end: Callable[[Callable[[], None]], None]) -> Any:
    """A future of the list of the call's tensors; `on_end` calls back when the call is over.

    Not `Future.set_exception`: C++ takes what that sets for a result, and DDP's reducer reads
    gradients out of it. What a callback raises fails the future it gives, for C++ too.
    """
    over: Future[None] = Future()

    def outcome(_over: Any) -> list[Tensor]:
        error = work.exception()
        if error is not None:
            raise again(error)
        return work.result()

    future = over.then(outcome)
    on_end(lambda: over.set_result(None))
    return future

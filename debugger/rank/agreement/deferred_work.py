"""An asynchronous call whose ranks have yet to agree: it enters the backend when they do.

The program goes on meanwhile, as it would with the backend's own call: a rank that waited here for
the others could wait for one that waits for this rank's next call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from distcore.engine.call_queue import CallQueue

from ..limits import IN_CALL_S, MOST_IN_VAIN_S, SHORT_IN_CALL_S
from ..log.rank_log import is_interruption
from ..record.describe import tensors_in
from ..record.waiting import NO_TIMEOUT, ForwardingWork


class Grace:
    """The time for which the calls of one group wait, each within the call.

    One that nobody joined in time waits short the next time; where it is joined at once then, as
    long as at first. What was waited for in vain is never more than `MOST_IN_VAIN_S` in all: a
    program whose ranks make their calls in other orders at each step loses that and no more.
    """

    def __init__(self) -> None:
        self._left_s = MOST_IN_VAIN_S
        self._in_vain: set[int] = set()

    def of(self, call: int) -> float:
        """For the call with this hash."""
        return SHORT_IN_CALL_S if self._left_s <= 0 or call in self._in_vain else IN_CALL_S

    def ended(self, call: int, in_vain: bool, waited_s: float) -> None:
        """The call waited as long as this."""
        if not in_vain:
            self._in_vain.discard(call)
        elif self._left_s > 0:
            self._left_s -= waited_s
            self._in_vain.add(call)


class Deferral:
    """A call between its making and its entry into the backend.

    `agree()` runs on the thread of the group's turn, and raises what the call must raise.
    `forward()` makes the backend's call: on the caller's thread if the others come soon.
    """

    def __init__(self, agree: Callable[[], None], forward: partial[Any]) -> None:
        self._agree = agree
        self._forward = forward
        self._guard = threading.Lock()
        self._agreed = threading.Event()  # the caller may go on
        self._entered = threading.Event()  # the call was made, or never will be
        self._caller_left = False
        self._cancelled = False
        self._made = False
        self._as_caller = _modes()
        self._on_entry: list[Callable[[], None]] = []
        self.error: BaseException | None = None
        self.work: Any = None

    def start(self, turn: CallQueue, grace_s: float = SHORT_IN_CALL_S) -> Any:
        """The backend's work, or one that stands for it until the ranks agree. Raises what comes of
        the call within `grace_s`."""
        try:
            # In here, since the handler of a signal may raise as soon as the turn has the call: it
            # would wait for ever for a caller that has gone.
            turn.submit(self._run)
            self._agreed.wait(grace_s)
            if self._leave():
                return DeferredWork(self)
            if self.error is not None:
                raise self.error
            self._made = True
            work = self._forward()
        except BaseException as error:
            # What the handler of a signal raises comes behind the call, as it would without us: the
            # others make theirs, and wait for it. The end of the process needs none.
            goes_on = isinstance(error, Exception) and is_interruption(error)
            self._cancelled = not goes_on
            if not self._leave():
                if goes_on:
                    self._enter()
                self._entered.set()
            raise
        self._entered.set()
        return work

    def _leave(self) -> bool:
        """The caller does not wait any longer; False where it need not."""
        with self._guard:
            self._caller_left = not self._agreed.is_set()
            return self._caller_left

    def _run(self) -> None:
        try:
            self._agree()
        except BaseException as error:
            self.error = error
        with self._guard:
            self._agreed.set()
            left = self._caller_left
        if not left:
            self._entered.wait()  # the turn is the caller's as long
            return
        self._enter()

    def _enter(self) -> None:
        """Make the call, once, now that it is agreed on or refused."""
        with self._guard:
            if self._made:
                return
            self._made = True
        if self.error is None and not self._cancelled:
            try:
                with self._as_caller():
                    self.work = self._forward()
            except BaseException as error:
                self.error = error
        with self._guard:
            self._entered.set()
            waiting, self._on_entry = self._on_entry, []
        for tell in waiting:
            tell()

    @property
    def devices(self) -> list[int | str | torch.device]:
        """The CUDA devices of the call's tensors."""
        tensors = tensors_in(self._forward.args)
        return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))

    @property
    def entered(self) -> bool:
        """Whether `work` or `error` is there."""
        return self._entered.is_set()

    def wait(self, timeout_s: float | None) -> bool:
        """Until `entered`; whether it came true in time. Who waits here makes the call, as it would
        without a deferral: what a profiler sees belongs to a thread."""
        mine = left = False
        try:
            with self._guard:
                if self._caller_left and not self._agreed.is_set():
                    mine = True
                    self._caller_left = False
            if mine:
                self._agreed.wait(timeout_s)
        finally:
            left = mine and self._leave()
            if mine and not left:
                self._enter()  # also when a signal's handler has raised: the group waits for it
        return not left and self._entered.wait(timeout_s)

    def when_entered(self, tell: Callable[[], None]) -> None:
        """Call `tell()` then, on any thread."""
        with self._guard:
            if not self._entered.is_set():
                self._on_entry.append(tell)
                return
        tell()


class DeferredWork(ForwardingWork):
    """The handle of a call that has not entered the backend yet; then it is the backend's."""

    _deferral: Deferral
    _future: Any

    def __init__(self, deferral: Deferral) -> None:
        super().__init__()
        self._deferral = deferral
        self._future = None

    def __repr__(self) -> str:
        state = repr(self._deferral.work) if self._deferral.entered else "not agreed on"
        return f"<DeferredWork: {state}>"

    @property
    def _work(self) -> Any:
        """The backend's work, once it is there. Raises what kept it from being made."""
        self._deferral.wait(None)
        if self._deferral.error is not None:
            raise self._deferral.error
        return self._deferral.work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits as the backend's handle does; RuntimeError at the timeout, after which it may be
        called again."""
        if timeout == NO_TIMEOUT:
            return bool(self._work.wait())
        began = time.monotonic()
        if not self._deferral.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out! Not all ranks have made this call.")
        left_s = timeout.total_seconds() - (time.monotonic() - began)
        return bool(self._work.wait(timedelta(seconds=max(left_s, 0.001))))

    def is_completed(self) -> bool:
        if not self._deferral.entered:
            return False
        return self._deferral.error is not None or bool(self._deferral.work.is_completed())

    def is_success(self) -> bool:
        return self._deferral.work is not None and bool(self._deferral.work.is_success())

    def exception(self) -> Any:
        if self._deferral.error is not None or self._deferral.work is None:
            return self._deferral.error
        return self._deferral.work.exception()

    def get_future(self) -> Any:
        """A future of its own: the backend's does not exist yet."""
        if self._deferral.entered and self._deferral.error is None:
            return self._deferral.work.get_future()
        if self._future is None:
            self._future = self._made_future()
        return self._future

    def _made_future(self) -> Any:
        """With the devices of the call's tensors, whose streams it makes wait; and failing by what
        a callback raises: what `set_exception` sets, C++ takes for a result."""
        ended: Any = torch.futures.Future(devices=self._deferral.devices)
        inner: list[Any] = []

        def outcome(_ended: Any) -> Any:
            return inner[0].value() if inner else self._work

        future = ended.then(outcome)

        def end(done: Any) -> None:
            inner.append(done)
            ended.set_result(None)

        def connect() -> None:
            if self._deferral.error is not None:
                ended.set_result(None)
            else:
                self._deferral.work.get_future().add_done_callback(end)

        self._deferral.when_entered(connect)
        return future


def _modes() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Returns what makes another thread make the call as this one would have: on its streams, with
    its grad and inference modes."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cuda: Any = torch.cuda
    stream = cuda.current_stream() if cuda.is_initialized() else None

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            if stream is None:
                yield
            else:
                with cuda.stream(stream):
                    yield

    return entered

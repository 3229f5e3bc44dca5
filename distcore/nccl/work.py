"""A call on a stream: its lane, which is a stream of a group on one device, and its handle.

Waiting for the handle makes the caller's stream wait, not the caller. The host waits in three cases
only: for a barrier, for a time limit given to `wait`, and for a message whose connection is not
there yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event as Flag
from threading import Lock
from typing import Any

from torch import Tensor

from ..base.deadline import Deadline
from ..engine.work import NO_TIMEOUT, CallWork, again, too_late
from ..limits import FIRST_PAUSE_S, MESSAGE_PAUSE_S
from .device import Cuda
from .library import Transfer
from .plan import Plan

Span = tuple[int, int]
"""When a call began and ended on its stream, in nanoseconds of time.monotonic_ns()."""


class StreamWork(CallWork):
    """The handle of one call. Its lane sets `started` and `ended`, events of its stream."""

    def __init__(
        self,
        text: str,
        tensors: Sequence[Tensor],
        device: Cuda,
        index: int,
        deadline: Deadline,
        blocks: bool = False,
    ) -> None:
        super().__init__(text, list(tensors))
        self.deadline = deadline
        self.blocks = blocks
        self.captured = False
        self.source: int | None = None
        self.started: Any = None
        self.ended: Any = None
        self.span: Span | None = None
        self._device = device
        self.index = index
        self._stream: Any = None
        self._launched = Flag()
        self._done = False
        self._lock = Lock()
        self._callbacks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        if self._error is not None:
            state = "failed"
        elif not self._launched.is_set():
            state = "connecting"
        else:
            state = "done" if self._over() else "on its stream"
        return f"<StreamWork {self.text}: {state}>"

    # -- from the lane and the watchdog ------------------------------------------------------------

    def launched(self, stream: Any, started: Any, ended: Any, captured: bool) -> None:
        """Notes that the call is on the stream, between these two events."""
        self._stream, self.started, self.ended = stream, started, ended
        self.captured = captured
        self._launched.set()

    def finish(self, error: BaseException | None, span: Span | None = None) -> None:
        """The call is over, `span` tells when it ran; only the first time counts."""
        with self._lock:
            if self._done:
                return
            self._error = error
            self.span = span
            self._done = True  # last: others look at it without the lock
            callbacks, self._callbacks = self._callbacks, []
        self._launched.set()
        for callback in callbacks:
            callback()

    def reached(self) -> bool:
        """Whether its stream has come to its end. Raises what CUDA raises."""
        return self.ended is not None and bool(self.ended.query())

    # -- what torch asks ---------------------------------------------------------------------------

    def wait(self, timeout: Any = NO_TIMEOUT) -> bool:
        """The current stream waits for the call; True. With a `timeout`, and for a barrier, the
        host waits too: DeadlineExceeded when the time is over first, and then the call goes on."""
        limit_s = timeout.total_seconds() if timeout > NO_TIMEOUT else None
        until_s = None if limit_s is None else time.monotonic() + limit_s
        if not self._launched.is_set():
            self._pause_until(self._launched.is_set, until_s, timeout)
        if self._error is not None:
            raise again(self._error)
        if not self.captured:
            if limit_s is not None or self.blocks:
                self._pause_until(self._over, until_s, timeout)
                if self._error is not None:
                    raise again(self._error)
            if self._record is not None and self._done:
                self._end_record()
        self.ended.wait(self._device.current_stream(self.index))
        return True

    def _over(self) -> bool:
        return self._done or self.reached()

    def _pause_until(
        self, condition: Callable[[], bool], until_s: float | None, timeout: Any
    ) -> None:
        """Asked again and again, so that Python's signals are seen."""
        pause_s = FIRST_PAUSE_S
        while not condition():
            if until_s is not None and time.monotonic() >= until_s:
                raise too_late(self.text, timeout)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MESSAGE_PAUSE_S)

    def is_completed(self) -> bool:
        if self.captured:
            return True  # it is in the graph; nothing runs before the graph does
        return self._launched.is_set() and self._over() and self._record_is_over()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call it when the call is over; at once if it is. By then its stream has come to its end,
        or the call has failed."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()

    def get_future(self) -> Any:
        """Returns a future as torch's: complete as soon as the call is on its stream; a reader of
        the value has its own stream wait."""
        if not self._launched.is_set():
            self._pause_until(self._launched.is_set, None, NO_TIMEOUT)
        future = self._device.future(self.index)
        if self._error is not None:
            error = again(self._error)

            def outcome(_future: Any) -> Any:
                raise error

            failed = future.then(outcome)
            future.set_result(list(self._tensors))
            return failed
        self.complete(future)
        return future

    def complete(self, future: Any) -> None:
        """With this call's tensors, for those whose streams wait for this one."""
        with self._device.on(self._stream):
            future.set_result(list(self._tensors))

    def _source_rank(self) -> int:
        if self.source is None:
            raise ValueError(f"{self.text} has no source rank: only a receive from any source has")
        return self.source

    def times_ns(self) -> Span | None:
        """When it ran on the GPU, by time.monotonic_ns(); None while that is not known."""
        return self.span

    def _get_duration(self) -> float:
        """Milliseconds on the GPU. Raises RuntimeError while it runs."""
        if self.captured or self.started is None or not self.reached():
            raise RuntimeError(f"{self.text} is not complete: it has no duration yet")
        return float(self.started.elapsed_time(self.ended))


class GatheredWork(CallWork):
    """The handle of a call between `_start_coalescing` and `_end_coalescing`: it becomes part of
    one that is launched at the end, and is waited for there."""

    def __init__(self, text: str, device: Cuda, index: int) -> None:
        super().__init__(text)
        self._device = device
        self._index = index
        self._whole: StreamWork | None = None
        self._futures: list[Any] = []

    def __repr__(self) -> str:
        return f"<GatheredWork {self.text}: part of {self._whole!r}>"

    def part_of(self, whole: StreamWork) -> None:
        self._whole = whole
        futures, self._futures = self._futures, []
        for future in futures:
            whole.complete(future)

    def _launched(self) -> StreamWork:
        if self._whole is None:
            raise RuntimeError(
                f"{self.text} is part of a group of calls that is not launched yet: wait for the "
                f"whole, after the end of the block"
            )
        return self._whole

    def wait(self, timeout: Any = NO_TIMEOUT) -> bool:
        return self._launched().wait(timeout)

    def is_completed(self) -> bool:
        return self._whole is not None and self._whole.is_completed()

    def exception(self) -> BaseException | None:
        return None if self._whole is None else self._whole.exception()

    def result(self) -> list[Tensor]:
        return self._launched().result()

    def on_end(self, callback: Callable[[], None]) -> None:
        self._launched().on_end(callback)

    def get_future(self) -> Any:
        if self._whole is not None:
            return self._whole.get_future()
        future = self._device.future(self._index)
        self._futures.append(future)
        return future


Issue = Callable[[int, Sequence[Transfer]], None]
"""(cudaStream_t, transfers): put them on the stream."""


class StreamLane:
    """Calls on it run one after another, each after what the caller's stream had to do before."""

    def __init__(self, device: Cuda, index: int) -> None:
        self.device = device
        self.index = index
        with device.entered(index):
            self.stream = device.stream(index)
            self._handle = device.handle(self.stream)

    def release(self) -> None:
        """Its calls are over, and there will be no others."""
        self.device.give_back(self.stream, self.index)

    def ready(self) -> Any:
        """An event at the end of what the caller's stream has to do so far."""
        event = self.device.event(timed=False)
        event.record(self.device.current_stream(self.index))
        return event

    def launch(
        self,
        work: StreamWork,
        make: Callable[[], Plan],
        issue: Issue,
        tensors: Sequence[Tensor],
        ready: Any = None,
    ) -> None:
        """Put a call on the stream. `make` plans it, with the stream current, so that its copies
        and the room for them are the stream's own; `ready`: see there, by default as of now;
        `tensors`: whose memory must last until the stream is through."""
        device, stream = self.device, self.stream
        with device.entered(self.index):
            captured = device.capturing()
            (self.ready() if ready is None else ready).wait(stream)
            # An event that a graph captures cannot be asked for its time.
            started, ended = device.event(timed=not captured), device.event(timed=not captured)
            with device.on(stream):
                started.record(stream)
                try:
                    for phase in make():
                        if phase.transfers:
                            issue(self._handle, phase.transfers)
                        for then in phase.then:
                            then()
                finally:
                    # Also where some of it failed: what was launched still uses the memory.
                    ended.record(stream)
                    for tensor in tensors:
                        device.keep(tensor, stream)
            work.launched(stream, started, ended, captured)

"""The handle of an asynchronous call: forwards everything, and records when the wait is over."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

from ...errors.in_ranks import FindingRaised
from ...record.writing.slots import ThreadSlot
from ..checks import in_flight
from ..checks.in_flight import Held
from ..record.lanes import NOWHERE, CallLine
from ..record.recorder import Known, Recorder
from ..record.waiting import NO_TIMEOUT, ForwardingWork, OverWork, whole
from . import outstanding
from .outstanding import AskedHandle, Followed, Handle, dropped

_getframe = sys._getframe
_works, _awaited, _kept = outstanding.works, outstanding.awaited, outstanding.kept
_asked = outstanding.asked


class TrackedWork(ForwardingWork):
    """Stands for the backend's work of one recorded call."""

    __slots__ = (
        "_after",
        "_held",
        "_known",
        "_line",
        "_number",
        "_open",
        "_recorder",
        "_since_ns",
        "_waiting",
        "_work",
    )

    _work: Any
    _recorder: Recorder
    _number: int
    _known: Known
    _line: CallLine
    _open: bool
    _after: Callable[[], None] | None
    _held: Held | None
    _waiting: bool
    _since_ns: int
    """When the first wait began that the program has given up, and not the call; 0: none."""

    def __repr__(self) -> str:
        state = "pending" if self._open else "done"
        return f"<TrackedWork of call {self._number}: {state}>"

    def _close(self, failed: bool = False, thread: ThreadSlot | None = None) -> None:
        """The call is over; recorded once, whoever notices first. `thread` has waited for it."""
        writer = self._recorder.writer
        if self._open:
            self._open = False
            outstanding.remove(self._number)
            if failed:
                writer.break_off(self._number, thread)
            else:
                if self._known.took is not None:
                    self._known.took(self._work)
                times = outstanding.times_ns(self._work) if self._known.streams else (0, 0)
                writer.finish(self._number, thread, *times)
        elif thread is not None:
            writer.leave_call(thread, self._number + 1)

    def _was_waited_for(self, thread: ThreadSlot | None = None) -> None:
        """`thread` has waited for the call, or has a stream that does: then it may not be over."""
        known = self._known
        if not (self._open and known.streams and outstanding.goes_on(self._work)):
            self._close(thread=thread)
            return
        self._open = False
        if known.took is not None:
            known.took(self._work)
        outstanding.remove(self._number)
        outstanding.follow(Followed(self._recorder, known.counted, self._number, self._work))
        if thread is not None:
            self._recorder.writer.leave_call(thread, self._number + 1)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the call; True when it succeeded. Raises what the backend raises."""
        if self._held is not None:
            self._check_held()
        work, known, writer = self._work, self._known, self._recorder.writer
        thread: ThreadSlot | None = None
        # On record with the line that waits, unless there is nothing to wait for.
        if self._open and not work.is_completed():
            line = self._line
            try:
                frame = _getframe(1)
            except ValueError:  # a thread of C++: autograd's of a GPU, with DDP's reducer
                site = line.site
            else:
                known_at = line.waits.get(frame.f_lasti) if line.code is frame.f_code else None
                site = self._site(frame) if known_at is None else known_at
            thread = writer.enter_wait(self._number + 1, site)
            if self._since_ns:
                writer.waits_since(thread, self._number + 1, self._since_ns)
        # A wait that fails makes the work complete: the heartbeat must not see that first.
        self._waiting = True
        try:
            if timeout is NO_TIMEOUT and (thread is None or known.wait is whole):
                result = work.wait()
            else:
                result = (whole if thread is None else known.wait)(work, timeout)
            if self._after is not None:
                self._look()
        except BaseException as error:
            self._gave_up(error, thread)
            better = self._recorder.waits.instead(error)
            if better is error:
                self._recorder.failed(self._number, error)
                raise
            raise better from None
        if not (known.plain and self._open):
            self._was_waited_for(thread)
        else:  # the same, without the cost of calling it
            self._open = False
            number = self._number
            _works.pop(number, None)
            if _awaited:
                _awaited.pop(number, None)
            if _kept:
                _kept.pop(number, None)
            if _asked:
                _asked.pop(number, None)
            writer.finish(number, thread)
        return result is True or bool(result)

    def _gave_up(self, error: BaseException, thread: ThreadSlot | None) -> None:
        """The wait has ended with this error: the call, too, unless it goes on. That is so where
        the program's own time limit for this wait is over, or where a signal's handler raised."""
        goes_on = False
        with contextlib.suppress(Exception):
            goes_on = not self._work.is_completed()
        if self._open and not isinstance(error, FindingRaised) and goes_on:
            self._waiting = False
            if thread is not None:
                writer, mark = self._recorder.writer, self._number + 1
                # Who asks again and again has waited since the first time.
                self._since_ns = self._since_ns or writer.wait_began(thread, mark)
                writer.leave_call(thread, mark)
            return
        self._close(failed=True, thread=thread)

    def _site(self, frame: FrameType) -> int:
        """The line that waits: that of the call, where torch's function waits for what it has
        called itself."""
        line = self._line
        if frame.f_code in line.fronts:
            return line.site
        site = self._recorder.site(frame)
        if site and line.code is frame.f_code and (line.fronts or not line.above):
            line.waits[frame.f_lasti] = site
        return site

    @property
    def number(self) -> int:
        """The call's, in the record."""
        return self._number

    @property
    def holds(self) -> bool:
        """Whether the program has neither waited for the call nor heard otherwise of its end, so
        that there is something to look at."""
        return self._held is not None

    def _release(self) -> None:
        """The program knows of the end, or may."""
        if self._held is not None:
            self._held = None
            in_flight.over()

    def hold(self, held: Held) -> None:
        """Look at these buffers when the call is waited for."""
        self._held = held

    def _check_held(self) -> None:
        held, self._held = self._held, None
        in_flight.over()
        try:
            if held is not None:
                held.check()
        except FindingRaised as error:
            self._close(failed=True)
            raise self._recorder.waits.instead(error) from None

    def _look(self) -> None:
        """At the result, once, if it is checked; raises the finding."""
        after, self._after = self._after, None
        if after is not None:
            after()

    def is_completed(self) -> bool:
        done = self.poll()
        if done:
            self._release()
        elif self._open:
            self._was_asked()
        return done

    def _was_asked(self) -> None:
        """The program asks whether the call is over: it may wait in this way."""
        asked = _asked.get(self._number)
        if asked is not None:
            asked.times += 1
            return
        try:
            frame = _getframe(2)
        except ValueError:
            return  # a thread of C++
        # Who asks of several calls does so in a function within the one that sleeps.
        above = frame.f_back
        codes = (frame.f_code,) if above is None else (frame.f_code, above.f_code)
        thread, native_id = threading.get_ident(), threading.get_native_id()
        _asked[self._number] = AskedHandle(thread, native_id, codes, self._site(frame))

    def poll(self) -> bool:
        """Whether the call is complete, which is put on record if so; asked by the layer itself."""
        done = bool(self._work.is_completed())
        if done and self._open and not self._waiting:
            error = outstanding.failure_of(self._work, self._known.streams)
            self._close(failed=error is not None)
            if error is not None:
                self._recorder.failed(self._number, error)
        return done

    def synchronize(self) -> None:
        self._release()
        self._work.synchronize()
        self._was_waited_for()

    def block_current_stream(self) -> None:
        self._release()
        self._work.block_current_stream()
        if self._known.streams:
            self._was_waited_for()

    def get_future(self) -> Any:
        """The backend's own future; its holder may wait for it where nobody can see."""
        self._release()  # whoever has it may hear of the end without a wait
        future = self._work.get_future()
        if self._after is not None:

            def looked_at(done: Any) -> Any:
                value = done.value()
                self._look()
                return value

            future = future.then(looked_at)
        if self._open:
            outstanding.awaited[self._number] = self
        return future


def track(
    work: Any,
    recorder: Recorder,
    number: int,
    known: Known,
    after: Callable[[], None] | None = None,
    line: CallLine = NOWHERE,
    held: Held | None = None,
) -> TrackedWork:
    """The handle for the backend's `work`, of a call made at this line. Looks at the buffers that
    are `held` when it is waited for. Sets the attributes from outside: a constructor in Python
    costs as much again as torch's own."""
    tracked = TrackedWork()
    tracked._work = work
    tracked._recorder = recorder
    tracked._number = number
    tracked._known = known
    tracked._line = line
    tracked._open = True
    tracked._after = after
    tracked._held = held
    tracked._waiting = False
    tracked._since_ns = 0
    # `outstanding.watch`, without the cost of calling it.
    handle = _works[number] = Handle(tracked, dropped)
    handle.number = number
    handle.work = work
    return tracked


class _WaitedFor(OverWork):
    """The result of torch's `send` and `recv`, which wait for it: the layer has done so already,
    and gloo's own handles must not be waited for twice."""

    def __repr__(self) -> str:
        return "<work that was waited for>"


WAITED_FOR = _WaitedFor()
"""The handle of a message that is over."""

"""Stops a rank that runs because somebody asks for it: at its next line, or before its next call.

The heartbeat sees the request. From then on the main thread traces the user's lines, beginning with
its next bytecode (nothing that it waits in is interrupted), and the next call of every group is
looked at, whichever thread makes it; the first that comes is the one. Until somebody asks, and
after that, none of this costs anything. A main thread that another traces (coverage, an editor)
stays that one's: there only calls are looked at.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import getpid
from pathlib import Path
from types import FrameType
from typing import Any

from ...record.requests import breakpoints
from ..limits import ARM_AFTER_S
from ..process.main_thread import MainThread
from ..record import call_site
from ..record.call_site import USER

LookOnce = Callable[[Callable[[], None] | None], None]


@dataclass(eq=False, repr=False)
class OnDemand:
    """Stops on demand in this process. `stops(frame)` shows the prompt there. `allows()` is called
    when a stop is asked for. `look_once(look)` has the next calls looked at, until it is called
    with None. `resumes(frame)` gives the tracing back to line breakpoints; `ours(trace)`: whether a
    trace function is theirs."""

    _directory: Path
    _main_thread: MainThread
    _stops: Callable[[FrameType], None]
    _allows: Callable[[], None]
    _look_once: LookOnce
    _resumes: Callable[[FrameType], None]
    _ours: Callable[[Any], bool]
    _owner: int = field(default_factory=getpid)
    _asked_s: float = 0.0
    _armed: bool = False
    _one: threading.Lock = field(default_factory=threading.Lock)

    def observe(self) -> None:
        """Lets the main thread be asked."""
        self._main_thread.on_return(self._trace_from)

    def adopt(self) -> None:
        """This process was forked, and may be asked itself now."""
        self._owner = getpid()
        self._asked_s, self._armed = 0.0, False
        self._one = threading.Lock()

    def look(self) -> None:
        """Called with every heartbeat."""
        if getpid() != self._owner:
            breakpoints.withdraw_request(self._directory, getpid())  # it passes over breakpoints
        elif not breakpoints.is_asked(self._directory, self._owner):
            if self._armed or self._asked_s:
                self._end()
        elif not self._asked_s:
            self._asked_s = time.monotonic()
        elif time.monotonic() - self._asked_s >= ARM_AFTER_S:
            with self._one:  # by now it may have been fulfilled
                if not self._armed and breakpoints.is_asked(self._directory, self._owner):
                    self._armed = True
                    self._allows()
                    self._look_once(self._before_call)
            self._main_thread.at_next_bytecode()  # each time: it may have been traced by another

    def fulfilled(self) -> None:
        """The process stands, for whatever reason."""
        if breakpoints.withdraw_request(self._directory, self._owner) or self._asked_s:
            self._end()

    def _end(self) -> None:
        with self._one:
            self._armed, self._asked_s = False, 0.0
            self._look_once(None)

    def _first(self) -> bool:
        """Whether this thread is the one to stop. The request is taken away here, so that nobody
        can take it back, and be told so, who comes later."""
        if getpid() != self._owner:
            self._armed = False  # the lock may be that of a thread that was not forked
            return False
        with self._one:
            armed, self._armed = self._armed, False
        return armed and breakpoints.withdraw_request(self._directory, self._owner)

    def _before_call(self) -> None:
        frame = call_site.find(sys._getframe(1))
        if frame is not None and self._first():
            self._stops(frame)

    # -- in the main thread --------------------------------------------------------------------

    def _trace_from(self, frame: FrameType | None) -> None:
        tracing = sys.gettrace()
        if not self._armed or tracing == self._trace:
            return
        if tracing is not None and not self._ours(tracing):
            return
        while frame is not None:
            if call_site.frame_kind(frame.f_code.co_filename) == USER:
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self._armed:
            if call_site.frame_kind(frame.f_code.co_filename) != USER:
                return None
            if event != "line":
                return self._trace
            if self._first():
                self._stops(frame)  # from here on the prompt decides who traces the frame
                return None
        self._untrace(frame)
        resumed = frame.f_trace
        return resumed(frame, event, arg) if resumed is not None and event == "line" else None

    def _untrace(self, frame: FrameType) -> None:
        """Ends the tracing: the request was taken back, or another thread has stopped."""
        if sys.gettrace() == self._trace:
            sys.settrace(None)
        found: FrameType | None = frame
        while found is not None:
            if found.f_trace == self._trace:
                found.f_trace = None
            found = found.f_back
        self._resumes(frame)

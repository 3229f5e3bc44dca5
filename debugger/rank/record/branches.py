"""Follows the branches that the user's code takes, and puts them on record with each call.

From Python 3.12 on the interpreter tells of branches (`sys.monitoring`), of code objects that are
the user's and of no others. Before that `sys.settrace` tells of every instruction in the user's
frames, which costs ten times as much, and stands aside for a debugger.

An event costs about a microsecond, so a loop over many small things would cost more than it tells.
A thread has a budget of `BUDGET` of the time since its last call; the branches that use most of it
are off for a while, longer each time, and the record says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import get_ident
from traceback import walk_stack, walk_tb
from types import CodeType, FrameType
from typing import Any

from ...record.snapshot import OFF_AND_ON
from ...record.writing.branch_writer import MESSAGE, PART, BranchWriter, file_name
from ..limits import BRANCHES_OFF_S
from ..log.rank_log import report_own_fault
from . import call_site, frames
from .conditions import Condition, conditions, source_line
from .recorder import GroupRecord, Known
from .variables import Reader, summary, title_of

BUDGET, EVENT_S = 0.025, 6e-6
"""Of the time; and what an event takes in all, with what a call writes of it, on a slow core."""
BURST, MOST = 2048, 1024
"""Events that may come at once; and of one interval."""
_MOST_STRAYS = 4096
_TOOL = 4
_WHAT = "watching branches"
_NOTHING = Condition(0)


@dataclass(slots=True, eq=False)
class BranchOutcome:
    """A way on from a branch of a code (which it keeps, for its id is looked up): its number on
    record, and what its condition reads; `off`: the branch is taken too often."""

    number: int
    branch: int
    code: CodeType
    readers: tuple[Reader, ...] = ()
    off: bool = False


@dataclass(slots=True, eq=False)
class Stream:
    """The events of a thread since its last call. `budget`: how many more it may have."""

    index: int
    events: list[tuple[BranchOutcome, Sequence[Any]]] = field(default_factory=list)
    budget: float = BURST
    since_s: float = field(default_factory=time.monotonic)
    seen: int = 0


class BranchWatch:
    """Follows the branches of this process, from `begin` on. What fails by its own fault is off
    from then on."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "ranks"
        self._writer: BranchWriter | None = None
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._events: dict[tuple[int, int, int | str], BranchOutcome] = {}
        """By the code's id, the offset of the branch and of what is next; or line and exception."""
        self._conditions: dict[int, tuple[CodeType, dict[int, Condition]]] = {}
        self._groups: dict[GroupRecord, int] = {}
        self._main = Stream(0)
        self._streams = {threading.main_thread().ident or 0: self._main}
        self._indices = count(1)
        self._strays = 0
        self._off: dict[int, int] = {}
        """The numbers of branches, and of the event that says of each that it is off."""
        self._again_s, self._pause_s = 0.0, BRANCHES_OFF_S

    def begin(self) -> None:
        """Begin, or begin anew in a forked child that is a rank of its own."""
        self._forget()
        try:
            self._writer = BranchWriter(self._folder / file_name(os.getpid()))
            if sys.version_info >= (3, 12):
                self._monitor()
            else:
                self._trace()
        except Exception as error:
            self._failed(error)

    def detach(self) -> None:
        """Follow no more; also in a forked child, whose branches are not its parent's."""
        if self._writer is None:
            return
        self._writer = None
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
            sys.monitoring.free_tool_id(_TOOL)
        else:
            for tracer in (sys, threading):
                if getattr(tracer.gettrace(), "__self__", None) is self:
                    tracer.settrace(None)

    def _failed(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self.detach()
        report_own_fault(_WHAT, error)

    # -- what the interpreter tells ------------------------------------------------------------

    if sys.version_info >= (3, 12):

        def _monitor(self) -> None:
            tool = sys.monitoring
            tool.use_tool_id(_TOOL, "distdebug")
            of = tool.events
            ways = ("BRANCH_LEFT", "BRANCH_RIGHT") if hasattr(of, "BRANCH_LEFT") else ("BRANCH",)
            self._told = 0
            for event in (getattr(of, name) for name in ways):
                self._told |= event
                tool.register_callback(_TOOL, event, self._taken)
            tool.register_callback(_TOOL, of.PY_START, self._started)
            tool.register_callback(_TOOL, of.EXCEPTION_HANDLED, self._handled)
            for frame in [sys._getframe(0), *frames.of_other_threads().values()]:
                for above, _ in walk_stack(frame):
                    self._started(above.f_code, 0)
            tool.set_events(_TOOL, of.PY_START | of.EXCEPTION_HANDLED)
            tool.restart_events()  # what a forked child did before it was a rank is disabled

        def _started(self, code: CodeType, _offset: int) -> Any:
            """A code object begins for the first time."""
            if self._writer is not None and _is_users(code):
                sys.monitoring.set_local_events(_TOOL, code, self._told)
            return sys.monitoring.DISABLE

        _NO_MORE: Any = sys.monitoring.DISABLE
    else:
        _NO_MORE: Any = None

        def _trace(self) -> None:
            if sys.gettrace() is not None:
                raise RuntimeError("a debugger or a coverage tool traces this program")
            for frame, _ in walk_stack(sys._getframe(0)):
                frame.f_trace = self._entered(frame, "call", None)
            threading.settrace(self._entered)
            sys.settrace(self._entered)

        def _entered(self, frame: FrameType, _event: str, _argument: Any) -> Any:
            code = frame.f_code
            if self._writer is None or not _is_users(code):
                return None
            try:
                known = self._conditions_of(code)
            except Exception as fault:
                self._failed(fault)
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            before = -1
            error: Any = None

            def told(frame: FrameType, event: str, argument: Any) -> Any:
                nonlocal before, error
                if event == "opcode":
                    at = frame.f_lasti
                    if error is not None:
                        self._handled(code, at, error)
                        error = None
                    elif before in known:
                        self._taken(code, before, at, frame)
                    before = at
                elif event == "exception":
                    ends = argument[0] in (StopIteration, StopAsyncIteration)
                    error, before = None if ends else argument[1], -1
                return told

            return told

    def _taken(
        self, code: CodeType, offset: int, destination: int, frame: FrameType | None = None
    ) -> Any:
        """The code goes on from its branch at this offset at that destination."""
        if self._writer is None:
            return self._NO_MORE
        try:
            event = self._events.get((id(code), offset, destination))
            if event is None:
                found = self._conditions_of(code).get(offset, _NOTHING)
                outcome = found.outcomes[destination != found.next_at]
                event = self._outcome(code, offset, destination, found, outcome)
            if event.off:
                return self._NO_MORE
            stream = self._streams.get(get_ident())
            if stream is None:  # the thread has made no call, and most of these never do
                self._strays += 1
                too_many = self._strays > _MOST_STRAYS
            else:
                frame = frame or sys._getframe(1)
                values = [_value(read, frame) for read in event.readers]
                stream.events.append((event, values))
                too_many = len(stream.events) > MOST
            if too_many:
                self._leave_out(event)
                return self._NO_MORE
        except Exception as error:
            self._failed(error)
        return None

    def _handled(self, code: CodeType, _offset: int, error: BaseException) -> None:
        """The code catches an exception that it, or what it has called, has raised."""
        if self._writer is None or not _is_users(code) or type(error) is GeneratorExit:
            return  # the last one: a generator is dropped, which decides nothing
        try:
            stream = self._streams.get(get_ident())
            line, source = _raised(code, error)
            if stream is None or not line or len(stream.events) > MOST:
                return
            name = f"{title_of(type(error))}{source}"
            event = self._events.get((id(code), -line, name))
            if event is None:
                made = Condition(line, source_line(code, line))
                found = self._conditions_of(code).setdefault(-line, made)
                event = self._outcome(code, -line, name, found, f"raised {name}")
            if not event.off:
                stream.events.append((event, ()))
        except Exception as fault:
            self._failed(fault)

    # -- what they are -------------------------------------------------------------------------

    def _conditions_of(self, code: CodeType) -> dict[int, Condition]:
        known = self._conditions.get(id(code))
        if known is None:
            known = self._conditions[id(code)] = (code, conditions(code))
        return known[1]

    def _outcome(
        self, code: CodeType, at: int, way: int | str, found: Condition, outcome: str
    ) -> BranchOutcome:
        """Puts a way on from a branch on record that is taken for the first time."""
        if not found.branch and found.line:
            place = (code.co_filename, found.line, code.co_name, found.source, found.part)
            found.branch = self._define("branch", *place, found.names, found.shown)
        number = self._define("event", found.branch, outcome) if found.branch else 0
        event = BranchOutcome(number, found.branch, code, found.readers, off=not number)
        self._events[id(code), at, way] = event
        return event

    def _define(self, kind: str, *row: Any) -> int:
        with self._lock:
            return self._writer.define(kind, *row) if self._writer is not None else 0

    # -- calls ---------------------------------------------------------------------------------

    def at_calls(self, record: GroupRecord) -> Callable[..., None]:
        """Returns what is to be called before each call of the group."""

        def before(_method: str, _args: tuple[Any, ...], known: Known, seq: int) -> None:
            if self._writer is not None:
                self._called(record, MESSAGE if known.channel is not None else seq)

        return before

    def _called(self, record: GroupRecord, seq: int) -> None:
        ident = get_ident()
        stream = self._streams.get(ident)
        if stream is None:
            stream = self._streams[ident] = Stream(next(self._indices))
        if stream is not self._main and self._main.events:
            self._put(self._main, 0, PART)  # an engine's thread calls for the main one
        group = self._groups.get(record)
        if group is None:
            group = self._define("group", record.name, record.incarnation)
            self._groups[record] = group
        self._put(stream, group, seq)
        self._keep_to_budget(stream)

    def look(self) -> None:
        """Put on record what threads have done that have not called since the last look."""
        for stream in list(self._streams.values()) if self._writer is not None else ():
            pending = len(stream.events)
            if pending and pending == stream.seen:
                self._put(stream, 0, PART)
            stream.seen = len(stream.events)

    def rest(self) -> None:
        """The process ends: put on record what there is. What the interpreter told after that it
        would tell modules that it has cleared."""
        for stream in list(self._streams.values()):
            if stream.events:
                self._put(stream, 0, PART)
        self.detach()

    def _put(self, stream: Stream, group: int, seq: int) -> None:
        taken, stream.events = stream.events, []
        stream.budget -= len(taken)
        numbers = [*(one.number for one, _ in taken), *self._off.values()]
        with self._lock:
            if self._writer is not None:
                values = [values or 0 for _, values in taken]
                self._writer.interval(group, seq, stream.index, numbers, values)
        if stream.budget < 0:
            for event, times in Counter(one for one, _ in taken).most_common(2):
                if times > 1:
                    self._leave_out(event)

    def _leave_out(self, event: BranchOutcome) -> None:
        """The branch is off for a while, with all ways on from it; the record says so with each
        interval."""
        if event.branch in self._off:
            return
        for one in list(self._events.values()):
            if one.branch == event.branch:
                one.off = True
        number = self._define("event", event.branch, OFF_AND_ON)
        self._off[event.branch] = number
        self._again_s = time.monotonic() + self._pause_s

    def _keep_to_budget(self, stream: Stream) -> None:
        now_s = time.monotonic()
        earned = (now_s - stream.since_s) * BUDGET / EVENT_S
        stream.budget, stream.since_s = min(BURST, stream.budget + earned), now_s
        if self._off and now_s > self._again_s:
            self._pause_s = min(64.0, 2 * self._pause_s)
            self._strays = 0
            for one in list(self._events.values()):
                one.off &= one.branch not in self._off
            self._off = {}
            if sys.version_info >= (3, 12):
                sys.monitoring.restart_events()


def _value(read: Reader, frame: FrameType) -> Any:
    """Returns what is kept of a value; of one that is not known an empty list."""
    try:
        return summary(read(frame))
    except LookupError:
        return []


def _is_users(code: CodeType) -> bool:
    user = call_site.frame_kind(code.co_filename) == call_site.USER
    return user and not call_site.is_compiled(code)


def _raised(code: CodeType, error: BaseException) -> tuple[int, str]:
    """Returns the line of this code from which the exception came (0: not known), and where it
    comes from itself: ` at data.py:12`, where another function of the user's has raised it."""
    line, source = 0, ""
    for frame, at in walk_tb(_traceback_of(error)):
        if frame.f_code is code:
            line, source = line or at, ""
        elif _is_users(frame.f_code):
            source = f" at {os.path.basename(frame.f_code.co_filename)}:{at}"
    return line, source


_traceback_of: Callable[[BaseException], Any] = BaseException.__dict__["__traceback__"].__get__

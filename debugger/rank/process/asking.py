"""Threads that wait by asking: `while not work.is_completed(): time.sleep(0.01)`, also in asyncio.

Nothing reports such a wait, and a program may ask now and then while it does something else. So it
is a guess, which makes the absent rank a suspect when the time is up, and proves nothing. It is
made where, for two seconds, the process made no call, the thread stood in nothing but the code that
asks (or in what that code sleeps in), and it either used hardly any CPU time or did nothing but
ask. Of messages nothing is guessed: who asks for one may serve others until it comes, for hours.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import FrameType

from ...record.layout import SEEN_ASKING
from ...system.proc import TICKS_PER_S, read_stat, tasks
from ..group import outstanding, tracked_work
from ..group.outstanding import AskedHandle
from ..limits import ASKING_CPU_S
from ..record import frames
from ..record.recorder import Recorder

BEATS = 20
"""The number of heartbeats that are looked at together."""
ONLY_ASKS = 1000
"""The number of questions in them from which on a program does nothing in between."""
_SLEEPS_IN = frozenset({"threading", "selectors"})


@dataclass
class _Window:
    """The beats of one look at a call that is asked for, and what was so before them."""

    times: int
    cpu_s: float
    waits: bool = False
    beats: int = 0


class Asking:
    """`beat` runs with every beat of the heartbeat."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._windows: dict[int, _Window] = {}
        self._calls = -1
        self._found: dict[int, tuple[int, AskedHandle]] = {}

    def beat(self, main_is_taken: bool) -> None:
        """`main_is_taken`: what the main thread waits for is known, or guessed, otherwise."""
        if not (outstanding.asked or self._found or self._windows):
            return
        writer = self._recorder.writer
        if self._calls != writer.calls:
            self._calls = writer.calls
            self._windows.clear()
        found: dict[int, tuple[int, AskedHandle]] = {}
        asked = sorted(outstanding.asked.items(), key=lambda item: item[0])
        self._windows = {number: self._window(number, one) for number, one in asked}
        for number, one in asked:
            if self._windows[number].waits and not writer.is_waiting(one.ident):
                found.setdefault(one.ident, (number, one))
        main = threading.main_thread().ident
        for ident, (number, one) in {**self._found, **found}.items():
            if ident == main and main_is_taken:
                found.pop(ident, None)
            elif ident not in found:
                writer.infer(ident, one.native_id, 0, 0)
            elif found[ident] != self._found.get(ident):
                writer.infer(ident, one.native_id, number + 1, one.site, SEEN_ASKING)
        self._found = found

    def _window(self, number: int, asked: AskedHandle) -> _Window:
        group, is_message = self._recorder.writer.group_of(number)
        window = self._windows.get(number)
        stands = group >= 0 and not is_message and _stands(asked)
        if window is None or not stands:
            return _Window(asked.times, _cpu_s(asked))
        window.beats += 1
        if window.beats < BEATS:
            return window
        cpu_s, times = _cpu_s(asked), asked.times - window.times
        waits = times >= ONLY_ASKS or (times > 0 and cpu_s - window.cpu_s <= ASKING_CPU_S)
        return _Window(asked.times, cpu_s, waits)


def _stands(asked: AskedHandle) -> bool:
    """Whether the thread is in the code that asks, or sleeps below it; one that runs an event loop
    may be in the loop."""
    frame: FrameType | None = frames.of_thread(asked.ident)
    while frame is not None and frame.f_code not in asked.codes:
        name = frame.f_globals.get("__name__", "")
        package = name.partition(".")[0]
        if package == "asyncio":
            return True
        if package not in _SLEEPS_IN and name != tracked_work.__name__:
            return False
        frame = frames.caller(frame)
    return frame is not None


def _cpu_s(asked: AskedHandle) -> float:
    stat = read_stat(asked.native_id, tasks())
    return stat.cpu_ticks / TICKS_PER_S if stat is not None else 0.0

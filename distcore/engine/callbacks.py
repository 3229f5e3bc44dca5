"""Threads for the callbacks of futures: their own, for a callback may make the group's next call
and wait for it.

Callbacks run one after another, in the order in which their calls ended, so that what they call
comes in one order on every rank. Those of calls that a callback made run beside it, a level below:
it may wait for them. And one that holds up others for `CALLBACK_S` may be waiting for those, so
they begin.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from ..base.background_thread import BackgroundThread
from ..limits import CALLBACK_S

_Job = Callable[[], None]
_now = time.monotonic


class _Here(threading.local):
    level = 0


_here = _Here()


def level() -> int:
    """Returns how deep in callbacks the current thread is; 0 outside of them. A call made here has
    its own callbacks on this level."""
    return _here.level


class Callbacks:
    """The callbacks of one group. Its threads are started by the first callback of a level."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._levels: dict[int, _Level] = {}

    def __repr__(self) -> str:
        return f"<Callbacks of {self._name}: {self.pending} to do>"

    @property
    def pending(self) -> int:
        """Callbacks that run or wait, without the one that asks."""
        with self._guard:
            levels = list(self._levels.values())
        return sum(one.pending for one in levels)

    def run(self, level: int, jobs: Iterable[_Job]) -> None:
        """Run them in this order; `level` is that of the thread that made the call."""
        with self._guard:
            lane = self._levels.get(level)
            if lane is None:
                lane = self._levels[level] = _Level(f"distcore callbacks of {self._name}", level)
        lane.add(jobs)

    def drain(self, timeout_s: float) -> bool:
        """Wait until none runs or waits, but the one that asks; whether that came true in time."""
        until = _now() + timeout_s
        with self._guard:
            levels = list(self._levels.values())
        return all(one.drain(until) for one in levels)

    def stop(self) -> None:
        """End the threads once they are idle."""
        with self._guard:
            levels = list(self._levels.values())
        for one in levels:
            one.stop()


class _Level:
    """The callbacks of one level: one thread runs them, and another is ready to take over."""

    def __init__(self, name: str, level: int) -> None:
        self._name = name
        self._level = level
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._running: dict[int, float] = {}  # by thread: when its callback began
        self._ready = 0
        self._stopped = False

    @property
    def pending(self) -> int:
        with self._changed:
            return self._others()

    def add(self, jobs: Iterable[_Job]) -> None:
        with self._changed:
            self._jobs.extend(jobs)
            self._have_one_ready()

    def _have_one_ready(self) -> None:
        if self._ready:
            self._changed.notify_all()
            return
        self._ready = 1
        BackgroundThread(self._serve, self._name).start()

    def _serve(self) -> None:
        _here.level = self._level + 1
        me = threading.get_ident()
        while True:
            with self._changed:
                job = self._next_in_turn()
                if job is None:
                    self._ready -= 1
                    return
                self._ready -= 1
                self._running[me] = _now()
                if self._jobs:
                    self._have_one_ready()
            job()
            del job  # it holds tensors
            with self._changed:
                del self._running[me]
                self._changed.notify_all()
                if self._ready > 1:
                    return  # there are enough
                self._ready += 1

    def _next_in_turn(self) -> _Job | None:
        """Wait for a callback, and for those before it; None where there will be none."""
        while True:
            if not self._jobs:
                if self._stopped:
                    return None
                self._changed.wait()
                continue
            left_s = max(self._running.values(), default=0.0) + CALLBACK_S - _now()
            if not self._running or left_s <= 0:
                return self._jobs.popleft()
            self._changed.wait(left_s)

    def _others(self) -> int:
        mine = threading.get_ident() in self._running
        return len(self._jobs) + len(self._running) - mine

    def drain(self, until: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._others(), max(0.0, until - _now()))

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

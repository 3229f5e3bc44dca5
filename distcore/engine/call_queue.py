"""The order of a group's calls, which run one at a time, and of the callbacks of their futures.

A caller who waits for its call runs it on its own thread. The calls of the others run on one
thread of the group, which is started by the first of them.

Callbacks have threads of their own, for one may make the group's next call and wait for it. They
run one after another, in the order in which their calls ended, so that what they call comes in one
order on every rank. Those of calls that a callback made run beside it, a level below: it may wait
for them. And one that holds up others for `CALLBACK_S` may be waiting for those, so they begin.
"""

from __future__ import annotations

import signal
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock

from ..base.background_thread import BackgroundThread
from ..limits import CALLBACK_S, MESSAGE_PAUSE_S

Job = Callable[[], None]
_NO_HANDLERS = frozenset((signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, None))
_HABIT = 8
"""So many calls in a row that their callers ran are more than chance."""


def _may_be_interrupted() -> bool:
    """Whether a signal's handler of the program's may raise here: that ends a wait, and must not
    end the call. (Ctrl-C ends the program.)"""
    if threading.current_thread() is not threading.main_thread():
        return False
    # Not by `signal.getsignal`, which makes a member of an enumeration of each answer: 10 times as
    # long.
    return not _NO_HANDLERS.issuperset(map(getsignal, range(1, signal.NSIG)))


class CallQueue:
    """`enter` and `leave` around a call of one's own; `submit` for one that the thread runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = Lock()
        self._busy = False
        self._waiting: deque[Lock | Job] = deque()
        self._idle: Lock | None = None
        self._thread: BackgroundThread | None = None
        self._next: Job | None = None
        self._work = Lock()  # released when `_next` is set, unless the thread is about to look
        self._work.acquire()
        self._is_woken = self._watches = self._is_taken = False
        self._taken_in_a_row = 0
        self._stopped = False

    @property
    def pending(self) -> int:
        """Calls that run or wait."""
        with self._guard:
            return self._busy + len(self._waiting)

    def enter(self) -> None:
        """Wait for this caller's turn. Python's signal handlers run meanwhile; when one raises,
        the caller has lost its turn and must not call `leave`."""
        with self._guard:
            if not self._busy:
                self._busy = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:
            with self._guard:
                try:
                    self._waiting.remove(turn)
                    given = False
                except ValueError:
                    given = True
            if given:
                self.leave()
            raise

    def leave(self) -> None:
        """The call is over; the next one may run."""
        job: Job | None = None
        with self._guard:
            if not self._waiting:
                self._busy = False
                if self._idle is not None:
                    self._idle.release()
                    self._idle = None
                return
            first = self._waiting.popleft()
            if callable(first):
                job = first
            else:
                first.release()
        if job is not None:
            self._hand_over(job)

    def submit(self, job: Job) -> None:
        """Run the job on the group's thread when its turn comes. A job must not raise."""
        with self._guard:
            if self._busy:
                self._waiting.append(job)
                return
            self._busy = True
        self._hand_over(job)

    def run_here(self, job: Job) -> bool:
        """Run a submitted job on this thread, if its turn has come and the group's thread has not
        begun it: that saves who waits for it two switches. Returns whether it did."""
        with self._guard:
            if self._next is not job or _may_be_interrupted():
                return False
            self._next = None
            self._is_taken = True
            self._taken_in_a_row += 1
        try:
            job()
        finally:
            self.leave()
        return True

    def _hand_over(self, job: Job) -> None:
        if self._thread is None:
            self._thread = BackgroundThread(self._run, f"distcore {self._name}")
            self._thread.start()
        with self._guard:
            self._next = job
            if not self._watches:
                self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._work.release()

    def _run(self) -> None:
        while True:
            in_time = self._work.acquire(timeout=MESSAGE_PAUSE_S if self._watches else -1)
            with self._guard:
                self._is_woken &= not in_time
                job, self._next = self._next, None
                if job is None and self._stopped:
                    return
                if job is not None:
                    self._taken_in_a_row = 0
                # A program that waits for each call at once would wake this thread in vain, which
                # costs as much as a small call: then it looks by itself while that goes on.
                self._watches = self._is_taken and self._taken_in_a_row >= _HABIT
                self._is_taken = False
            while job is not None:
                job()
                job = self._following()

    def _following(self) -> Job | None:
        """The next call if it is the thread's own; otherwise another runs, or none."""
        with self._guard:
            if self._waiting and callable(self._waiting[0]):
                job: Job = self._waiting.popleft()  # type: ignore[assignment]
                return job
        self.leave()
        return None

    def drain(self, timeout_s: float) -> bool:
        """Wait until no call runs or waits; whether that came true in time."""
        with self._guard:
            if not self._busy:
                return True
            if self._idle is None:
                self._idle = Lock()
                self._idle.acquire()
            idle = self._idle
        if not idle.acquire(timeout=timeout_s):
            return False
        idle.release()
        return True

    def stop(self) -> None:
        """End the thread once it is idle. Not to be used any more."""
        with self._guard:
            if self._busy or self._thread is None or self._stopped:
                return
            self._stopped = True
            self._wake()


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

    @property
    def pending(self) -> int:
        """Callbacks that run or wait, without the one that asks."""
        with self._guard:
            levels = list(self._levels.values())
        return sum(one.pending for one in levels)

    def run(self, level: int, jobs: Iterable[Job]) -> None:
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
        self._jobs: deque[Job] = deque()
        self._running: dict[int, float] = {}  # by thread: when its callback began
        self._ready = 0
        self._stopped = False

    @property
    def pending(self) -> int:
        """Callbacks that run or wait, without the one that asks."""
        with self._changed:
            mine = threading.get_ident() in self._running
            return len(self._jobs) + len(self._running) - mine

    def add(self, jobs: Iterable[Job]) -> None:
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

    def _next_in_turn(self) -> Job | None:
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

    def drain(self, until: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self.pending, max(0.0, until - _now()))

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

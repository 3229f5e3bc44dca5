"""The order of calls: a group's calls run one at a time, in the order they were made.

A caller who waits for its call runs it on its own thread. The calls of the others run on one
thread of the group, which is started by the first of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from ..base.background_thread import BackgroundThread

Job = Callable[[], None]


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
        self._work = Lock()  # released when `_next` is set
        self._work.acquire()
        self._stopped = False

    def __repr__(self) -> str:
        state = "busy" if self._busy else "idle"
        return f"<CallQueue {self._name!r}: {state}, {len(self._waiting)} waiting>"

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

    def _hand_over(self, job: Job) -> None:
        self._next = job
        if self._thread is None:
            self._thread = BackgroundThread(self._run, f"distcore {self._name}")
            self._thread.start()
        self._work.release()

    def _run(self) -> None:
        while True:
            self._work.acquire()
            job, self._next = self._next, None
            if job is None:
                return
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
        self._next = None
        self._work.release()

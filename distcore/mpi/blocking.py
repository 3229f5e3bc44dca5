"""MPI's blocking calls on a thread of their own: whoever waits for one can give up, MPI cannot."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from ..base.background_thread import BackgroundThread


class BlockingThread:
    """Makes one call at a time: `start`, then `over` until it is true.

    A call that nobody waits for any more keeps the thread for as long as MPI keeps the call.
    """

    def __init__(self, name: str) -> None:
        self._call: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._begun = Lock()
        self._begun.acquire()
        self._done = Lock()
        self._done.acquire()
        self._busy = False
        self._thread = BackgroundThread(self._run, name)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<BlockingThread {self._thread.name!r}: {'in a call' if self._busy else 'idle'}>"

    @property
    def idle(self) -> bool:
        """Whether it is in no call."""
        return not self._busy

    def start(self, call: Callable[..., object], *args: Any) -> None:
        """Make the call."""
        self._busy = True
        self._call = lambda: call(*args)
        self._begun.release()

    def over(self, wait_s: float) -> bool:
        """Whether it is over, after at most so long; raises what it raised. Python's signal
        handlers run meanwhile."""
        if not self._done.acquire(timeout=wait_s):
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def stop(self) -> None:
        """End the thread, once it is idle."""
        self._call = None
        self._begun.release()

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            call, self._call = self._call, None
            if call is None:
                return
            try:
                call()
            except BaseException as error:
                self._error = error
            self._busy = False
            self._done.release()

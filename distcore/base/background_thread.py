"""Threads of a library, which the program does not find among its own.

A program may wait for all the threads that there are, by `threading.enumerate()` or
`active_count()`, and those of torch's own backends are in neither. It would wait for ever for one
that serves its groups for as long as these live.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from os import getpid
from typing import Any

_MOST_NAME_BYTES = 15
"""The longest name of a thread that Linux keeps."""


class BackgroundThread:
    """A thread like a daemon of `threading.Thread`. The system shows `name`, as far as it has
    room."""

    def __init__(
        self, target: Callable[..., object], name: str, args: tuple[Any, ...] = ()
    ) -> None:
        self.name = name
        self.ident: int | None = None
        self._process = 0
        self._target = target
        self._args = args
        self._ended = threading.Event()

    def __repr__(self) -> str:
        state = "not begun" if not self._process else "running" if self.is_alive() else "ended"
        return f"<BackgroundThread {self.name!r}: {state}>"

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system has no room for another thread."""
        self._process = getpid()
        self.ident = _thread.start_new_thread(self._bootstrap, ())

    def is_alive(self) -> bool:
        """Whether it has begun and has not ended; a forked child does not have it."""
        return self._process == getpid() and not self._ended.is_set()

    def is_here(self) -> bool:
        """Whether it is the thread that asks."""
        return self.ident == threading.get_ident() and self.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, or so long."""
        if self.is_alive():
            self._ended.wait(timeout_s)

    def _bootstrap(self) -> None:
        """The thread's body, named as in `threading`: by that a dump of stacks tells that it is no
        main thread."""
        self.ident = threading.get_ident()  # who began it may be given no core to hear of that
        try:
            with suppress(OSError), open("/proc/thread-self/comm", "wb", buffering=0) as comm:
                comm.write(self.name.encode()[:_MOST_NAME_BYTES])
            self._target(*self._args)
        except SystemExit:
            pass
        except BaseException:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
        finally:
            del self._target, self._args  # what they hold is the group's
            self._ended.set()

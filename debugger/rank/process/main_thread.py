"""Brings the main thread back to Python, for what it alone can do: raise there, trace its lines."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNAL = signal.SIGRTMAX - 3
"""Used within the process only."""


class MainThread:
    """The main thread of this process."""

    def __init__(self) -> None:
        self._acts: list[Callable[[FrameType | None], None]] = []

    def observe(self) -> None:
        """Begin; must be called in the main thread, in others it has no effect."""
        with contextlib.suppress(ValueError, OSError):
            signal.signal(SIGNAL, self._act)

    def on_return(self, act: Callable[[FrameType | None], None]) -> None:
        """`act(frame)` is called in the main thread, with the frame that it was in; it may
        raise."""
        self._acts.append(act)

    def interrupt(self) -> None:
        """Now, out of whatever it sleeps or waits in."""
        main = threading.main_thread().ident
        if main is not None and signal.getsignal(SIGNAL) == self._act:  # else the process would end
            with contextlib.suppress(ProcessLookupError, RuntimeError):
                signal.pthread_kill(main, SIGNAL)

    def at_next_bytecode(self) -> None:
        """When it runs Python again by itself: no system call is interrupted."""
        _thread.interrupt_main(SIGNAL)  # type: ignore[arg-type]  # any number does

    def _act(self, _number: int, frame: FrameType | None) -> None:
        for act in self._acts:
            act(frame)

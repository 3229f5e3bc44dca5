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

_acts: list[Callable[[FrameType | None], None]] = []


def observe() -> None:
    """Begin; must be called in the main thread, in others it has no effect."""
    with contextlib.suppress(ValueError, OSError):
        signal.signal(SIGNAL, _act)


def on_return(act: Callable[[FrameType | None], None]) -> None:
    """`act(frame)` is called in the main thread, with the frame that it was in; it may raise."""
    _acts.append(act)


def interrupt() -> None:
    """Now, out of whatever it sleeps or waits in."""
    main = threading.main_thread().ident
    if main is not None and signal.getsignal(SIGNAL) is _act:  # else it would end the process
        with contextlib.suppress(ProcessLookupError, RuntimeError):
            signal.pthread_kill(main, SIGNAL)


def at_next_bytecode() -> None:
    """When it runs Python again by itself: no system call is interrupted."""
    _thread.interrupt_main(SIGNAL)  # type: ignore[arg-type]  # any number does


def _act(_number: int, frame: FrameType | None) -> None:
    for act in _acts:
        act(frame)

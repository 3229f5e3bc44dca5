"""Faults of the process: it gets a signal, ends, raises, hangs, is late."""

from __future__ import annotations

import builtins
import ctypes
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

from ...faults.actions import exception_of
from ...record.layout import Phase
from ...record.limits import POLL_EVERY_S
from ...record.notes import ExitNote
from .context import CannotHappen, Context, at_users_line

_MUTEX_BYTES = 128
"""More than a pthread mutex has anywhere; all zeros is one that is free."""


def kill(context: Context) -> None:
    """The signal comes to this process; one that it handles, in its main thread."""
    number = getattr(signal, f"SIG{context.arguments['signal']}")
    if number == signal.SIGKILL:  # of all others that end it, the process itself leaves the line
        recorder = context.recorder
        recorder.note(ExitNote(), "killed by SIGKILL", recorder.safe_site(context.frame))
    context.announce()
    os.kill(os.getpid(), number)


def leave(context: Context) -> None:
    """Ends the process as `os._exit(code)` in the program would: no `finally`, no handler, nothing
    is flushed."""
    code = int(context.arguments["code"])
    recorder = context.recorder
    recorder.note(ExitNote(), f"os._exit({code})", recorder.safe_site(context.frame))
    context.announce()
    recorder.writer.phase(Phase.ENDED, code)
    os._exit(code)


def throw(context: Context) -> None:
    """The exception is raised at the program's line."""
    name, message = exception_of(context.arguments["error"])
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise CannotHappen(f"{name} is no built-in exception; name one, such as ValueError")
    try:
        error = kind(message)
    except TypeError:
        raise CannotHappen(
            f"{name} cannot be made of a text alone; name another exception, such as ValueError"
        ) from None
    context.announce()
    at_users_line(context.frame, "raise error", {"error": error})


def delay(context: Context) -> None:
    """The thread sleeps, as if the program's own line took so long."""
    seconds = float(context.arguments["delay_s"])
    sleep = partial(_sleep, context.recorder.waits.check)
    context.announce()
    at_users_line(context.frame, "sleep(seconds)", {"sleep": sleep, "seconds": seconds})


def hang(context: Context) -> None:
    """The thread does not come back, unless the verdict of the run is raised in it: asleep and at a
    lock it can be; in C it cannot, with or without the GIL, and has to be killed."""
    stay = _HANGS[context.arguments["how"]](context.recorder.waits.check)
    context.announce()
    at_users_line(context.frame, "stay()", {"stay": stay})


def _sleep(check: Callable[[], None], seconds: float) -> None:
    """`check` raises when it must end."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_EVERY_S))
        check()


def _lock_up(library: ctypes.CDLL) -> None:
    """Take a lock of C's that this thread holds already: no signal brings it out of there."""
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    while True:
        library.pthread_mutex_lock(mutex)


_HANGS: dict[str, Callable[[Callable[[], None]], Callable[[], object]]] = {
    "sleep": lambda check: partial(_sleep, check, math.inf),
    "lock": lambda _check: threading.Semaphore(0).acquire,  # no frame of ours stands above it
    "gil": lambda _check: partial(_lock_up, ctypes.PyDLL(None)),
    "native": lambda _check: partial(_lock_up, ctypes.CDLL(None)),
}

ACTS: dict[str, Callable[[Context], None]] = {
    "kill": kill,
    "exit": leave,
    "raise": throw,
    "delay": delay,
    "hang": hang,
}

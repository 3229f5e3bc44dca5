"""Tells what a signal handler of the program's raised from what went wrong by itself.

A handler runs between two lines of whatever the main thread executes, which may be ours, and what
it raises is meant for the program: Ctrl-C, or torchrun's SignalException upon SIGTERM.
"""

from __future__ import annotations

import functools
import signal
from traceback import walk_tb
from types import CodeType
from typing import Any


def is_interruption(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it."""
    if isinstance(error, KeyboardInterrupt):
        return True
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    # Raised where it was caught, it is no handler's, which has a frame of its own.
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return len(codes) > 1 and not codes.isdisjoint(
        code
        for handler in handlers
        if callable(handler) and isinstance(code := _code(handler), CodeType)
    )


def _code(handler: Any) -> Any:
    """Returns the code of a function, a method, a partial of one, or an object that can be
    called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = type(handler).__call__
    return getattr(function, "__code__", None)

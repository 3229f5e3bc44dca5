"""Tells what a signal handler of the program's raised from what went wrong by itself.

A handler runs between two lines of whatever the main thread executes, which may be ours, and what
it raises is meant for the program: Ctrl-C, or torchrun's SignalException upon SIGTERM.
"""

from __future__ import annotations

import signal
from types import CodeType


def is_interruption(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handlers() -> set[CodeType]:
    found = (signal.getsignal(number) for number in signal.valid_signals())
    codes = (getattr(getattr(one, "__func__", one), "__code__", None) for one in found)
    return {code for code in codes if isinstance(code, CodeType)}

"""A fault of the layer itself: a part of it is switched off, and the program goes on.

Imports no torch: the log may fail before the program has imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from os import getpid

from . import rank_log
from .interruptions import is_interruption

RAISED = "DISTDEBUG_RAISE_OWN_FAULTS"
"""Set where a fault of the layer is to fail the program: in its own tests."""


def report_own_fault(what: str, error: BaseException) -> None:
    """Prints one line on stderr: a part of the layer is switched off, the program goes on. Raises
    what the handler of a signal has raised, which is the program's."""
    if os.environ.get(RAISED) or is_interruption(error):
        raise error
    note_part_off = rank_log.of_this_process.note_part_off
    if note_part_off is not None:
        note_part_off(what, f"{what} is switched off: {error!r}")
    text = f"{what} is switched off in process {getpid()}: {error!r}"
    say(text)
    rank_log.put("own_fault", "warning", {"message": text}, printed=True)


def at_exit(handler: Callable[[], object]) -> None:
    """Have the handler called when the process ends. What the program has replaced by then (`open`,
    `os.getpid`, a clock) may make it fail, which must not show in what the program prints."""

    def guarded() -> None:
        with contextlib.suppress(Exception):
            handler()

    atexit.register(guarded)


def say(text: str) -> None:
    """Prints one line on stderr, from the layer to the user."""
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"distdebug: {text}\n".encode("utf-8", "backslashreplace"))

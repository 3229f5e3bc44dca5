"""A rank writes its stacks into the run directory: when asked, and as a fatal signal ends it.

What the system tells of a crash is a number. On which line of the program it was, only the process
itself can tell, by `faulthandler`, in the moment between the signal and the end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
from pathlib import Path

from ...record import lost_pages
from ...record.stack_dump import STACK_SIGNAL, dump_path

_ours = False


def write_into(stacks: Path) -> None:
    """From now on, in this process. A program that has `faulthandler` write elsewhere keeps that,
    and so does one with a handler of its own for crashes (a Java machine lives by it)."""
    global _ours
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = dump_path(stacks, os.getpid())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)
        if faulthandler.is_enabled() or _is_caught(signal.SIGSEGV):
            return
        faulthandler.enable(descriptor, all_threads=True)
        lost_pages.stay_first()
        if not _ours:
            os.register_at_fork(after_in_child=_leave)
        _ours = True


def _leave() -> None:
    """A forked child is another process: its crash is not its parent's."""
    with contextlib.suppress(RuntimeError):
        faulthandler.disable()


def _is_caught(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)

"""A rank writes its stacks into the run directory: when asked, and as a fatal signal ends it.

What the system reports of a crash is a number. On which line of the program it was, only the
process itself can tell, by `faulthandler`, in the moment between the signal and the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import resource
import signal
from pathlib import Path

from ...record import lost_pages
from ...record.requests.supervision import STACK_SIGNAL, dump_path
from ...system.proc import has_signal, read_status

_HIGHEST = 1000


class CrashWriter:
    """The last words of this process, and of those that it forks."""

    def __init__(self, stacks: Path) -> None:
        self._stacks = stacks
        self._descriptor = -1
        self._file = (0, 0)

    def begin(self) -> None:
        """Begins, in this process. A program that has `faulthandler` write elsewhere keeps that,
        and so does one with a handler of its own for crashes (a Java machine lives by it)."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            path = dump_path(self._stacks, os.getpid())
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            if self._holds():  # a forked child that becomes a rank: what its parent set up goes on
                self._goes_to(descriptor)
                return
            descriptor = _out_of_the_way(descriptor)
            self._descriptor, self._file = descriptor, _identity(descriptor)
            os.register_at_fork(after_in_child=self._leave)
            faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)
            # Where the system does not tell, what handler there may be is left alone.
            status = read_status()
            caught = not status or has_signal(status, "SigCgt", signal.SIGSEGV)
            if not (faulthandler.is_enabled() or caught):
                lost_pages.put_behind(lambda: faulthandler.enable(descriptor, all_threads=True))

    def _leave(self) -> None:
        """A forked child is another process: its crash is not its parent's."""
        with contextlib.suppress(OSError):
            if self._holds():
                self._goes_to(os.open(os.devnull, os.O_WRONLY))

    def _holds(self) -> bool:
        """Whether the number is still our file's, and the program has not closed it."""
        try:
            return self._descriptor >= 0 and _identity(self._descriptor) == self._file
        except OSError:
            return False

    def _goes_to(self, descriptor: int) -> None:
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)
        self._file = _identity(self._descriptor)


def _out_of_the_way(descriptor: int) -> int:
    """The same file by a number that no file of the program gets: `faulthandler` keeps the number,
    and the system gives the lowest that is free. A program that closes what it has not opened, as
    one that becomes a daemon does, would have its crash written into a file of its own else."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    least = _HIGHEST if allowed == resource.RLIM_INFINITY else min(_HIGHEST, allowed * 15 // 16)
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:  # all of those are taken
        return descriptor
    os.close(descriptor)
    return high


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


VARIABLE = "DISTDEBUG_PTRACE_ANY"
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def open_to_all(libc: ctypes.CDLL | None = None) -> bool:
    """Says, where the environment asks for it (`--ptrace-any`), that stacks of this process may be
    taken from outside by any process of the user. Returns False where it is not asked for, or where
    the kernel has no Yama, which then forbids nothing either.

    Where Yama restricts ptrace (`ptrace_scope` 1), only those above a process may read it; a shell
    that somebody opens on the host hours later is not above it. The kernel lets a process say that
    it does not mind, at once and for itself alone: a forked child has to say so again.
    """
    if not os.environ.get(VARIABLE):
        return False
    library = libc or ctypes.CDLL(None)
    return bool(library.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0) == 0)

"""The kernel ends a run's ranks when nobody is left who could: a FIFO ties them to the supervisor.

The supervisor holds its writing end, and nothing is ever written. A rank, and the command's own
process, open the reading end and ask the kernel for SIGKILL as soon as that changes: which it does
when the supervisor's end is closed, however that happened, and for one that is stopped or holds the
GIL as well. Warden and drain end all the others, also those that this does not reach, as long as
one of them lives. The owner of a descriptor is one process: what a rank has forked is not ended by
it, and a daemon lives on. Linux only; elsewhere nobody is tied.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat

NAME = ".lifeline"
"""Hidden, for whoever reads it waits: `cat RUN_DIR/*` is for files."""
TIED = "DISTDEBUG_TIED"
"""The process that is tied already: a forked child, which inherits this, is not."""


class Lifeline:
    """The supervisor's end. Close it when all that was started has been ended."""

    def __init__(self) -> None:
        self._end = -1
        self._path = ""

    def begin(self, directory: str | os.PathLike[str]) -> None:
        """Begins: from now on processes may tie themselves to this one. Raises OSError."""
        path = os.path.join(os.path.abspath(directory), NAME)
        os.mkfifo(path, 0o600)
        self._path = path
        # Open for both: an end for writing alone cannot be opened before there is a reader.
        self._end = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # nobody can tie itself any more
            self._path = ""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tie(directory: str | os.PathLike[str]) -> bool:
    """This process ends with the supervisor of the run. False where none holds a lifeline there, or
    the system has none to give; nothing has changed then."""
    own = str(os.getpid())
    if os.environ.get(TIED) == own:
        return True
    if not hasattr(fcntl, "F_SETSIG"):
        return False
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        end = os.open(os.path.join(directory, NAME), flags)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(end).st_mode) or not _held(end):
            os.close(end)
            return False
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        os.close(end)
        return False
    if not _held(end):  # it ended just now, and the kernel had not been asked yet
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ[TIED] = own
    return True


def _held(end: int) -> bool:
    """Whether some process has the writing end."""
    try:
        os.read(end, 1)
    except BlockingIOError:
        return True
    return False

"""The request to a rank that runs to stop: a file in the run directory, which its heartbeat sees.

`breakpoints/break-<pid>` (empty, 0600, in a folder of 0700) is made by the supervisor. The rank
removes it when it stands; the supervisor, when the rank is to go on after all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .breakpoints import FOLDER, own_folder

_NAME = re.compile(r"break-[1-9]\d{0,9}")


def ask(directory: Path, pid: int) -> None:
    """The process is to stop. Asking again is asking once. Raises OSError."""
    folder = own_folder(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(folder / f"break-{int(pid)}", flags, 0o600))


def withdraw(directory: Path, pid: int) -> bool:
    """The process need not stop any more; whether it was asked to."""
    try:
        (directory / FOLDER / f"break-{int(pid)}").unlink()
    except OSError:
        return False
    return True


def is_asked(directory: Path, pid: int) -> bool:
    """Whether the process is asked to stop. One system call."""
    return os.path.lexists(directory / FOLDER / f"break-{int(pid)}")


def any_asked(directory: Path) -> bool:
    """Whether any process of the run is asked to stop."""
    try:
        names = os.listdir(directory / FOLDER)
    except OSError:
        return False
    return any(map(_NAME.fullmatch, names))

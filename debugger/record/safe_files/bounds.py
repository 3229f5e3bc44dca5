"""Bounds for what is read from files that anybody may have made: a run directory comes from
elsewhere, too.

Only regular files are read: a pipe would hold its reader up for ever, a device may have no end.
Nothing is read beyond a size, and no number is taken that no run can have.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from typing import Any

MOST_WHOLE = 1 << 63
"""Whole numbers in our files are of 64 bits."""
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: str | os.PathLike[str], follow_links: bool = False) -> int:
    """A descriptor to read this file. Raises OSError, also for what is no regular file; never
    waits for somebody at the other end, and follows no link but where that is asked for."""
    return open_sized(path, follow_links)[0]


def open_sized(path: str | os.PathLike[str], follow_links: bool = False) -> tuple[int, int]:
    """The same, and how many bytes the file has."""
    descriptor = os.open(path, _READING if follow_links else _READING | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return descriptor, found.st_size


def read_regular(
    path: str | os.PathLike[str], most_bytes: int, follow_links: bool = False
) -> bytes:
    """Returns what the file holds, up to that many bytes. Raises OSError."""
    with open(open_regular(path, follow_links), "rb", buffering=0) as file:
        pieces = []
        while most_bytes > 0 and (piece := file.read(most_bytes)):
            pieces.append(piece)
            most_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def finite(value: Any) -> float:
    """A number from JSON. Raises ValueError or TypeError for anything that is none, or without an
    end."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a number without an end")
    return number


def whole(value: Any) -> int:
    """A whole number from JSON. Raises ValueError, TypeError or OverflowError for anything that is
    none, or has more than 64 bits."""
    number = int(value)
    if not -MOST_WHOLE < number < MOST_WHOLE:
        raise ValueError("a number has more than 64 bits")
    return number


def whole_or_none(value: Any) -> int | None:
    """A whole number as JSON writes one; None where it is none, or has more than 64 bits."""
    if type(value) is not int or not -MOST_WHOLE < value < MOST_WHOLE:
        return None
    return value

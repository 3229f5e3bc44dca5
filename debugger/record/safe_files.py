"""Files, directories and sockets that others write, too: read within bounds, written whole.

A run directory comes from elsewhere, too. Only regular files are read: a pipe would hold its reader
up for ever, a device may have no end. Nothing is read beyond a size, and no number is taken that no
run can have. A JSON text of a few megabytes can stand for gigabytes of lists in lists, so what it
would take in memory is estimated before it is read.

The process that shows what ranks print uses this: see its `drain` for why `typing` is not imported.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from ..system.proc import path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

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


def end_of(path: Path, most_bytes: int) -> tuple[bytes, int]:
    """Returns the last bytes of a file, up to that many, and how many are before them. Raises
    OSError."""
    with open(open_regular(path), "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        before = file.seek(max(0, size - most_bytes))
        return file.read(most_bytes), before


def mark_of(path: Path) -> tuple[int, int]:
    """Returns what changes whenever a file does, its time (ns) and its size; (0, 0) where there is
    none."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


class AddedLines:
    """The whole lines that others add to a file. So many bytes are read at once at most, and no
    line of ours is longer."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._offset = 0
        self._rest = b""

    def new(self) -> list[bytes]:
        """Returns those that have come since the last call; none where the file cannot be read.
        Costs one `stat` where there are none."""
        try:
            if os.stat(self._path).st_size <= self._offset:
                return []
            with open(open_regular(self._path), "rb", buffering=0) as file:
                file.seek(self._offset)
                received = file.read(self._most_bytes)
        except OSError:
            return []
        self._offset += len(received)
        *lines, rest = (self._rest + received).split(b"\n")
        self._rest = rest if len(rest) <= self._most_bytes else b""
        return lines


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


MOST_JSON_BYTES = 64 << 20
"""The most bytes of a file of ours that holds one JSON document."""
MOST_COST_BYTES = 160 << 20
"""The most memory for one document: the report of 16,384 ranks, or any other that is ours."""


class TooCostly(ValueError):
    """The text may be JSON, but would take more memory than a document of ours does."""


def cost_bytes(text: bytes) -> int:
    """Returns about how much memory the parsed text takes, at most."""
    return (
        2 * len(text)
        + 232 * text.count(b"{")
        + 72 * text.count(b"[")
        + 72 * text.count(b",")
        + 140 * text.count(b":")
    )


def parsed(text: bytes, most_cost_bytes: int = MOST_COST_BYTES) -> Any:
    """Reads a text as JSON. Raises ValueError where it is none, too deep or too costly."""
    if len(text) > MOST_JSON_BYTES or cost_bytes(text) > most_cost_bytes:
        raise TooCostly("it would take too much memory")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_of(text: bytes, most_cost_bytes: int = MOST_COST_BYTES) -> dict[str, Any]:
    """The JSON object in this text; empty for anything else."""
    if text.lstrip()[:1] != b"{":
        return {}
    try:
        value = parsed(text, most_cost_bytes)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def open_to_append(path: Path) -> int:
    """A descriptor whose writes go to the end of the file, which is made if need be; not through a
    link. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def append(path: Path, data: bytes) -> None:
    """Add the data. Raises OSError."""
    descriptor = open_to_append(path)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o600, *, lasts: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once the block is over; after an exception there is no
    trace of it. `lasts`: it is on the disk then, also if the machine loses its power. Raises
    OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            yield file
            file.flush()
            if lasts:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


_CREDENTIALS = struct.Struct("3i")


@contextlib.contextmanager
def short_name(folder: Path) -> Iterator[str]:
    """Another name of the folder: a socket's path has 108 bytes, and run directories lie deep.
    Raises OSError, also where the folder is a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield path_of(descriptor)
    finally:
        os.close(descriptor)


def user_of(connection: socket.socket) -> int:
    """The user whose process is at the other end; the kernel says so."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user

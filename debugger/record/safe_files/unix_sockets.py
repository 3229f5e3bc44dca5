"""Sockets in a run directory: reached however deep it lies, and who is at the other end."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from ...system.proc import path_of

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

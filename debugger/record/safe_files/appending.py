"""Adds to files that several processes write at once: each time one write, at the end."""

from __future__ import annotations

import os
from pathlib import Path


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

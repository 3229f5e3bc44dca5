"""Writes files whole or not at all: no reader finds half of one, and a full disk leaves what was
there before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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

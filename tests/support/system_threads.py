"""The threads of this process as the system shows them: those of a library are in no list of
Python's (see `distcore/base/background_thread.py`)."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


def names() -> list[str]:
    """Of all that there are now, as far as the system keeps them: 15 characters."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append((task / "comm").read_text().rstrip("\n"))
    return found


def gone(name: str, limit_s: float = 20.0) -> bool:
    """Whether there is no thread of this name, soon: one that was joined has a moment left to the
    system."""
    until = time.monotonic() + limit_s
    while name in names():
        if time.monotonic() >= until:
            return False
        time.sleep(0.001)
    return True

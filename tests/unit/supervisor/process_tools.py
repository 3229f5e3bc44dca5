"""Helpers for tests with real processes: short programs, and their pids."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.waiting import until

REPOSITORY = Path(__file__).parents[3]
LIMIT_S = 45.0
"""For what takes a moment, on a machine that is crowded."""


def python(code: str) -> list[str]:
    """A command that runs `code` quickly: no site packages."""
    return [sys.executable, "-I", "-S", "-c", code]


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids_in(path: Path, count: int, limit_s: float = LIMIT_S) -> list[int]:
    """The pids that processes of the test have written to a file, one a line."""

    def read() -> list[int]:
        text = path.read_text() if path.exists() else ""
        return [int(line) for line in text.split("\n")[:-1]]

    until(lambda: len(read()) >= count, f"{count} pids in {path.name}", limit_s)
    return read()


def kill_quietly(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass

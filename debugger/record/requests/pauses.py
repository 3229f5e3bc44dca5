"""Whether ranks stand at breakpoints, or are asked to: what each rank asks with every heartbeat.

The files are those of `requests.breakpoints`, of which a rank that stops nowhere loads nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...system import proc

FOLDER = "breakpoints"
STOP = re.compile(r"(x|0|[1-9]\d{0,8})-([1-9]\d{0,9})\.json")
_REQUEST = re.compile(r"break-[1-9]\d{0,9}")


def any_stop(directory: Path) -> bool:
    """Whether `stops` would find somebody; asked ten times a second."""
    return any(proc.exists(match[2]) for match in named(directory, STOP))


def named(directory: Path, names: re.Pattern[str]) -> list[re.Match[str]]:
    """Returns what is in the folder by such names."""
    try:
        return list(filter(None, map(names.fullmatch, os.listdir(directory / FOLDER))))
    except OSError:
        return []


def withdraw_request(directory: Path, pid: int) -> bool:
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
    return bool(named(directory, _REQUEST))

"""A rank's log file: whole JSON lines, which several processes add, in two files of limited size.

A line is one write to a descriptor opened for appending, so the lines of a rank, of its forked
children and of a restarted rank never mix. At half of the limit `<rank>.jsonl` becomes
`<rank>.jsonl.1`, in place of the one before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from datetime import datetime
from pathlib import Path
from struct import Struct

from ..safe_files.appending import open_to_append

TYPE_CHECKING = False  # see supervisor/output/drain.py
if TYPE_CHECKING:
    from typing import Any

MAX_MB = "DISTDEBUG_LOG_MAX_MB"
DEFAULT_MAX_MB = 64.0
_GLOG = re.compile(
    r"(?:\[rank\d+\]:)?\[([IWEF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.\d+ +"
    r"(?:\d+ )?([^\s:\]]+):(\d+)\] ?(.*)"
)
_GLOG_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
CPP_EVENT = "torch"
"""The event of a message of torch's C++ code."""


RECORDS, STDOUT, STDERR = "jsonl", "out", "err"
STREAMS = (STDOUT, STDERR, RECORDS)
TIMES_ENTRY = Struct("<QQ")
"""How much of an output file had come, in bytes, and when, in Unix nanoseconds."""


def times_path(path: Path) -> Path:
    """Returns the file that keeps when the lines of an output file came."""
    return path.with_name(f"{path.name}.times")


def in_bytes(megabytes: float) -> int:
    """Returns a limit in MiB in bytes."""
    return int(megabytes * (1 << 20))


def most_bytes() -> int:
    """Returns how much the two files of a rank may hold together, by its environment."""
    try:
        return in_bytes(float(os.environ.get(MAX_MB, "")))
    except (ValueError, OverflowError):
        return in_bytes(DEFAULT_MAX_MB)


def older(path: Path) -> Path:
    """Returns the file with the lines before those in `path`."""
    return path.with_name(f"{path.name}.1")


def append(path: Path, line: bytes, most: int) -> None:
    """Add a line, which ends in a newline, to files of at most so many bytes. Raises OSError."""
    descriptor = open_to_append(path)
    try:
        size = os.fstat(descriptor).st_size
        if size and size + len(line) > most // 2:
            _rotate(path, descriptor)
            os.close(descriptor)
            descriptor = open_to_append(path)
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _rotate(path: Path, descriptor: int) -> None:
    """Set the file aside, unless somebody else does or has. Never waits: a signal handler may log
    while the thread that it interrupts is just here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:
        pass  # no locks on this file system: two that rotate at once may lose the older half
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            os.replace(path, older(path))


def parse_glog(line: str, seen_ns: int) -> dict[str, Any] | None:
    """Reads a line of torch's C++ code, such as `[W0310 14:15:02.123456789 a.cpp:7] text`, as a
    record; None for any other line.

    The line has the local time, without a year; its fraction of a second is another clock's (that
    of the time since boot). So its time is `seen_ns`, when it was read, within the line's second.
    """
    match = _GLOG.match(line)
    if match is None:
        return None
    letter, month, day, hour, minute, second, file, number, text = match.groups()
    this_year = datetime.fromtimestamp(seen_ns / 1e9).astimezone().year
    near = []
    for year in (this_year - 1, this_year, this_year + 1):
        with contextlib.suppress(ValueError):  # 29 February, or no date at all
            moment = f"{year}-{month}-{day}T{hour}:{minute}:{second}"
            date = datetime.fromisoformat(moment).astimezone()
            near.append(int(date.timestamp()) * 10**9)
    if not near:
        return None
    second_ns = min(near, key=lambda one: abs(one - seen_ns))
    return {
        "time_ns": min(max(seen_ns, second_ns), second_ns + 999_999_999),
        "level": _GLOG_LEVELS[letter],
        "event": CPP_EVENT,
        "message": text,
        "file": file,
        "line": int(number),
    }

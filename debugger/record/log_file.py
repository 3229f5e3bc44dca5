"""The log of a rank: its levels, its file, and the form in which a record is shown to people.

The file has whole JSON lines, which several processes add, in two files of limited size.

A line is one write to a descriptor opened for appending, so the lines of a rank, of its forked
children and of a restarted rank never mix. At half of the limit `<rank>.jsonl` becomes
`<rank>.jsonl.1`, in place of the one before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from struct import Struct

from .safe_files import open_to_append
from .safe_text import clean

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


LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
"""From the least to the gravest."""

DEBUG_LEVELS = OFF, INFO, DETAIL = ("OFF", "INFO", "DETAIL")
"""The levels of torch's TORCH_DISTRIBUTED_DEBUG, which are distdebug's as well."""

_CPP_LEVELS = {
    **dict.fromkeys(("0", "INFO"), "info"),
    **dict.fromkeys(("1", "WARNING"), "warning"),
    **dict.fromkeys(("2", "ERROR"), "error"),
    **dict.fromkeys(("3", "FATAL"), "fatal"),
}
_MORE_THAN_INFO = {INFO: "debug", DETAIL: "trace"}


def chosen_level(cpp_log_level: str, distributed_debug: str) -> str:
    """The least level that is logged, by TORCH_CPP_LOG_LEVEL and TORCH_DISTRIBUTED_DEBUG.

    ERROR and WARNING (torch's own default, also for what it does not know) give their own level
    whatever the other says; INFO gives info, with INFO debug, with DETAIL trace.
    """
    level = _CPP_LEVELS.get(cpp_log_level.strip().upper(), "warning")
    if level != "info":
        return level
    return _MORE_THAN_INFO.get(distributed_debug.strip().upper(), level)


def at_least(level: object, least: str) -> bool:
    """Whether `level` is as grave as `least`; a level that does not exist is."""
    return level not in LEVELS or LEVELS.index(str(level)) >= LEVELS.index(least)


IN_PLACE = frozenset({"time_ns", "rank", "host", "pid", "level", "event", "file", "line"})
"""The keys that every record has, or may have: shown in a place of their own, without their
names."""
TRACES = ("stack", "exception")
"""Shown below, a line each, and not in the line itself, if they are text or a list."""
HIDDEN = frozenset({"printed"})
MOST_VALUE = 2000
MOST_PLACE = 80
_RESET, _DIM = "\x1b[0m", "\x1b[2m"
_LEVEL_COLOURS = {
    "trace": _DIM,
    "debug": _DIM,
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "fatal": "\x1b[1;31m",
}


def readable(record: Mapping[str, Any], *, colour: bool = False) -> str:
    """The line, harmless for a terminal, with a traceback below it. `record` may hold anything that
    JSON can."""
    level = _text(record.get("level", ""), MOST_PLACE)
    shown_level = f"{level:<7}"
    event = _text(record.get("event", ""), MOST_VALUE)
    traces: dict[str, list[Any]] = {}
    for name in TRACES:
        trace = record.get(name)
        rows = trace.splitlines() if isinstance(trace, str) else trace
        if rows and isinstance(rows, list):
            traces[name] = rows
    pairs = [
        f"{_text(key, MOST_PLACE)}={_value(value)}"
        for key, value in record.items()
        if key not in IN_PLACE and key not in HIDDEN and key not in traces
    ]
    place = ""
    if isinstance(file := record.get("file"), str):
        name = _text(os.path.basename(file), MOST_PLACE)
        place = f"({name}:{_text(record.get('line', '?'), 20)})"
    node = _text(record.get("host", ""), MOST_PLACE).partition(".")[0] or "?"
    rank = record.get("rank")
    who = f"pid {record.get('pid', '?')}" if rank is None else rank
    prefix, moment = f"[{node}:{_text(who, MOST_PLACE)}]", _clock(record.get("time_ns"))
    if colour:
        shown_level = f"{_LEVEL_COLOURS.get(level, '')}{shown_level}{_RESET}"
        moment, place = f"{_DIM}{moment}{_RESET}", place and f"{_DIM}{place}{_RESET}"
    line = " ".join(filter(None, (prefix, moment, shown_level, event, *pairs, place)))
    below = (f"    {_text(row, MOST_VALUE)}" for rows in traces.values() for row in rows)
    return "\n".join([line, *below])


def _clock(time_ns: object) -> str:
    try:
        moment = datetime.fromtimestamp(float(str(time_ns)) / 1e9).astimezone()
    except (ValueError, OverflowError, OSError):
        return "--:--:--.---"
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def _value(value: object) -> str:
    if isinstance(value, str):
        plain = value and not any(c.isspace() or c in "\"'=" for c in value)
        return _text(value if plain else json.dumps(value, ensure_ascii=False), MOST_VALUE)
    return _text(json.dumps(value, ensure_ascii=False, default=repr), MOST_VALUE)


def _text(value: object, most: int) -> str:
    return clean(value if isinstance(value, str) else str(value), most)

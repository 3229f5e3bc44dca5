"""The form in which a log record is shown to people: one line, `[node:rank] time level event
key=value`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..safe_text.sanitize import clean

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
    traces = {name: rows for name in TRACES if (rows := _rows(record.get(name)))}
    pairs = [
        f"{_text(key, MOST_PLACE)}={_value(value)}"
        for key, value in record.items()
        if key not in IN_PLACE and key not in HIDDEN and key not in traces
    ]
    place = _place(record)
    prefix, moment = _prefix(record), _clock(record.get("time_ns"))
    if colour:
        shown_level = f"{_LEVEL_COLOURS.get(level, '')}{shown_level}{_RESET}"
        moment, place = f"{_DIM}{moment}{_RESET}", place and f"{_DIM}{place}{_RESET}"
    line = " ".join(filter(None, (prefix, moment, shown_level, event, *pairs, place)))
    below = (f"    {_text(row, MOST_VALUE)}" for rows in traces.values() for row in rows)
    return "\n".join([line, *below])


def _rows(trace: object) -> list[Any]:
    """Returns what is shown below the line for this trace."""
    if isinstance(trace, str):
        return trace.splitlines()
    return trace if isinstance(trace, list) else []


def _prefix(record: Mapping[str, Any]) -> str:
    """`[node:rank]`, with the process instead where it never knew its rank."""
    node = _text(record.get("host", ""), MOST_PLACE).partition(".")[0] or "?"
    rank = record.get("rank")
    who = f"pid {record.get('pid', '?')}" if rank is None else rank
    return f"[{node}:{_text(who, MOST_PLACE)}]"


def _clock(time_ns: object) -> str:
    try:
        moment = datetime.fromtimestamp(float(str(time_ns)) / 1e9).astimezone()
    except (ValueError, OverflowError, OSError):
        return "--:--:--.---"
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def _place(record: Mapping[str, Any]) -> str:
    file = record.get("file")
    if not isinstance(file, str):
        return ""
    return f"({_text(os.path.basename(file), MOST_PLACE)}:{_text(record.get('line', '?'), 20)})"


def _value(value: object) -> str:
    if isinstance(value, str):
        plain = value and not any(c.isspace() or c in "\"'=" for c in value)
        return _text(value if plain else json.dumps(value, ensure_ascii=False), MOST_VALUE)
    return _text(json.dumps(value, ensure_ascii=False, default=repr), MOST_VALUE)


def _text(value: object, most: int) -> str:
    return clean(value if isinstance(value, str) else str(value), most)

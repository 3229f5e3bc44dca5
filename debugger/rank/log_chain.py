"""What becomes of a log event in a rank: structlog's chain, from the event to its JSON line.

Imported with the first event, for structlog takes 0.1 s to import. Nothing global is configured:
how the program itself uses structlog or logging is its own matter.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

MOST_TEXT = 4096
MOST_ITEMS = 1000
MOST_DEPTH = 4
MOST_LINE_BYTES = 1 << 18
FIRST = ("time_ns", "rank", "host", "pid", "level", "event", "group", "seq", "op", "file", "line")
"""The fields that records may have in common, in their order."""


class _Logger:
    """What structlog calls at the chain's end."""

    def put(self, record: Mapping[str, Any], line: bytes) -> tuple[Mapping[str, Any], bytes]:
        return record, line


class _Bound(structlog.BoundLoggerBase):
    def put(self, event: str) -> Any:
        return self._proxy_to_logger("put", event)


def made(event: str, fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """The record of an event with these fields, and its line, which ends in a newline. What is an
    exception in `exc_info` becomes its traceback."""
    # By the context, not as keywords: the program chooses the fields' names.
    record: tuple[Mapping[str, Any], bytes] = _Bound(_Logger(), _PROCESSORS, dict(fields)).put(
        event
    )
    return record


Event = MutableMapping[str, Any]


def _harmless(_logger: Any, _method: str, event: Event) -> Event:
    trace = event.get("exception")
    if isinstance(trace, str):
        event["exception"] = trace[-MOST_TEXT:]  # its end is what counts
    return {key[:MOST_TEXT]: plain(value) for key, value in event.items()}


def _in_order(_logger: Any, _method: str, event: Event) -> Event:
    known = {name: event[name] for name in FIRST if event.get(name) is not None}
    rest = {name: value for name, value in event.items() if name not in FIRST}
    return {**known, **rest}


def _to_line(_logger: Any, _method: str, event: Event) -> tuple[tuple[Any, ...], dict[str, Any]]:
    line = _json(event)
    if len(line) > MOST_LINE_BYTES:
        event = {name: event[name] for name in FIRST if name in event} | {"cut": len(line)}
        line = _json(event)
    return (event, line), {}


def _json(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON can have it, of limited size: tensors and arrays of one element as their
    number, what JSON does not know as its repr."""
    try:
        return _plain(value, depth)
    except Exception:  # another thread changes it, or it is not what it seems
        return _shown(value)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value[:MOST_TEXT])
    if isinstance(value, int):
        return int(value) if value.bit_length() < 1000 else _shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if depth < MOST_DEPTH:
        if isinstance(value, Mapping):
            items = itertools.islice(value.items(), MOST_ITEMS)
            return {str(key)[:MOST_TEXT]: plain(one, depth + 1) for key, one in items}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(one, depth + 1) for one in itertools.islice(value, MOST_ITEMS)]
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            return plain(value.item(), MOST_DEPTH)
    return _shown(value)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:MOST_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a repr>"


_PROCESSORS: list[Any] = [structlog.processors.format_exc_info, _harmless, _in_order, _to_line]

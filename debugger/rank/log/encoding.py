"""The encoding of log events in a rank: structlog's chain, from the event to its JSON line.

Imported with the first event, for structlog takes 0.1 s to import. Nothing global is configured:
how the program itself uses structlog or logging is its own matter.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, MappingView, MutableMapping
from typing import TYPE_CHECKING, Any

from ...hook.loading import dependency

if TYPE_CHECKING:
    import structlog
else:
    structlog = dependency("structlog")

MOST_TEXT = 4096
MOST_ITEMS = 2000
"""Within the lists and mappings of one record, all together."""
MOST_DEPTH = 8
MOST_BITS = 10_000
"""The most bits of a whole number; Python refuses to write longer ones, or takes long."""
LEFT_OUT = "..."
MOST_LINE_BYTES = 1 << 18
FIRST = ("time_ns", "rank", "host", "pid", "level", "event", "group", "seq", "op", "file", "line")
"""The fields that records may have in common, in their order."""


class _Logger:
    """The logger that structlog calls at the chain's end."""

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
    values = _Values()
    return {key[:MOST_TEXT]: values.plain(value) for key, value in event.items()}


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


_LISTS = (list, tuple, set, frozenset, deque, array, MappingView)
_WALKED = (Mapping, *_LISTS)


class _Values:
    """The values of one record as JSON can have them, of limited size, whatever they are: tensors
    and arrays of one element as their number, what JSON does not know as its repr."""

    def __init__(self) -> None:
        self._left = MOST_ITEMS
        self._around: set[int] = set()
        """The containers, by `id`, in which the value is: one that holds itself has no end."""

    def plain(self, value: Any) -> Any:
        """`value`; what is too much of it is left out."""
        try:
            return self._plain(value)
        except Exception:  # it is not what it seems
            return _shown(value)

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value[:MOST_TEXT])
        if isinstance(value, int):
            return int(value) if value.bit_length() < 1000 else _shown(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else repr(float(value))
        if isinstance(value, _WALKED):
            return self._container(value)
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            number = value.item()
            return self._plain(number) if isinstance(number, (int, float, str)) else _shown(number)
        return _shown(value)

    def _container(self, value: Any) -> Any:
        if id(value) in self._around or len(self._around) == MOST_DEPTH:
            return LEFT_OUT
        self._around.add(id(value))
        try:
            return self._mapping(value) if isinstance(value, Mapping) else self._list(value)
        finally:
            self._around.discard(id(value))

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        found = {}
        try:
            for key, one in value.items():
                if self._left <= 0:
                    found[LEFT_OUT] = LEFT_OUT
                    break
                self._left -= 1
                found[self._key(key)] = self.plain(one)
        except Exception:  # another thread changes it
            found[LEFT_OUT] = LEFT_OUT
        return found

    def _list(self, value: Iterable[Any]) -> list[Any]:
        found = []
        try:
            for one in value:
                if self._left <= 0:
                    found.append(LEFT_OUT)
                    break
                self._left -= 1
                found.append(self.plain(one))
        except Exception:  # another thread changes it
            found.append(LEFT_OUT)
        return found

    def _key(self, key: Any) -> str:
        if isinstance(key, tuple):
            items = self.plain(key)
            return str(tuple(items) if isinstance(items, list) else items)[:MOST_TEXT]
        if isinstance(key, (str, int, bytes, frozenset)):
            return str(self.plain(key))[:MOST_TEXT]
        try:
            return str(key)[:MOST_TEXT]
        except Exception:
            return _shown(key)


def _shown(value: Any) -> str:
    try:
        if isinstance(value, _WALKED):
            return LEFT_OUT
        if isinstance(value, (bytes, bytearray)):
            value = value[:MOST_TEXT]
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            return f"<int of {value.bit_length()} bits>"
        return repr(value)[:MOST_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a repr>"


_PROCESSORS: list[Any] = [structlog.processors.format_exc_info, _harmless, _in_order, _to_line]

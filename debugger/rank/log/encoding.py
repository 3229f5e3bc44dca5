"""The encoding of log events in a rank: from the event and its fields to a JSON line.

With the standard library alone. structlog took 0.2 s of each rank to import, and had to come from
distdebug's environment where the program's had none.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, MappingView
from typing import Any

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


def made(event: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The record of an event with these fields, and its line, which ends in a newline. Of what is
    an exception in `exc_info`, or of the one that is handled where that is true, it has the
    traceback."""
    given = {**fields, "event": event}
    error = given.pop("exc_info", None)
    if isinstance(error, tuple) and len(error) == 3:  # as `sys.exc_info()` gives it
        error = error[1]
    if not isinstance(error, BaseException):
        error = sys.exc_info()[1] if error else None
    if error is not None:
        given["exception"] = "".join(traceback.format_exception(error)).removesuffix("\n")
    if isinstance(trace := given.get("exception"), str):
        given["exception"] = trace[-MOST_TEXT:]  # its end is what counts
    values = _Values()
    plain = {key[:MOST_TEXT]: values.plain(value) for key, value in given.items()}
    first = {name: plain[name] for name in FIRST if plain.get(name) is not None}
    record = {**first, **{name: one for name, one in plain.items() if name not in FIRST}}
    line = _json(record)
    if len(line) > MOST_LINE_BYTES:
        record = {**first, "cut": len(line)}
        line = _json(record)
    return record, line


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


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

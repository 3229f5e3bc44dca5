"""Times and rates in a spec: numbers with their unit."""

from __future__ import annotations

import re

from .cursor import Cursor
from .tokens import Shape, Token

_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)([A-Za-z%]*)")
_SECONDS = {"us": 1e6, "ms": 1e3, "s": 1.0}
"""The number of each unit that makes a second."""
_RATES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
LONGEST_S = 1e6
FASTEST = 1e12


def seconds_of(cursor: Cursor, token: Token, what: str, *, zero: bool = False) -> float:
    """`200ms`, `3s`, `1.5s`: seconds, above 0 or `zero`. Raises SpecError."""
    match = _NUMBER.fullmatch(token.text) if token.shape is Shape.NUMBER else None
    if match is None or match[2] not in _SECONDS:
        unit = "" if match is None or match[2] else f"; with its unit: {match[1]}s or {match[1]}ms"
        raise cursor.error(f"{what} is a time such as 200ms or 3s{unit}", token)
    value = float(match[1]) / _SECONDS[match[2]]
    if not (value > 0 or (zero and value == 0)) or value > LONGEST_S:
        least = "from" if zero else "above"
        raise cursor.error(f"{what} is {least} 0 and at most {LONGEST_S:.0f} s", token)
    return value


def rate_of(cursor: Cursor, token: Token, what: str) -> float:
    """`2M`, `500k`, `1200`: bytes per second. Raises SpecError."""
    match = _NUMBER.fullmatch(token.text) if token.shape is Shape.NUMBER else None
    if match is None or match[2] not in _RATES:
        raise cursor.error(f"{what} is in bytes per second, such as 500k, 2M or 1G", token)
    value = float(match[1]) * _RATES[match[2]]
    if not 0 < value <= FASTEST:
        raise cursor.error(f"{what} is above 0 and at most {FASTEST:.0f} bytes per second", token)
    return value

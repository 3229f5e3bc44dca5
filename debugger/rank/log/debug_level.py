"""The debug level: what the user asked for, what the program sets at run time.

torch itself never gets DETAIL, at which it would put a wrapper of its own around each backend. That
wrapper crashes DDP on gloo, and does not look at roots, reduce ops, splits and messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .. import torch_private

LEVEL = "DISTDEBUG_LEVEL"
DETAIL = "DETAIL"
LEVELS = ("OFF", "INFO", DETAIL)

_current = "INFO"
_observers: list[Callable[[bool], None]] = []


def observe() -> None:
    """From now on torch's public functions of the debug level ask and tell us."""
    asked = os.environ.get(LEVEL, "INFO").upper()
    level = torch_private.take_debug_level(current, choose, asked)
    choose(level if level == DETAIL else asked)


def current() -> str:
    """The level's name."""
    return _current


def is_detail() -> bool:
    """Whether calls are checked before they enter the backend."""
    return _current == DETAIL


def on_detail(observer: Callable[[bool], None]) -> None:
    """`observer(is_detail())` is called when that changes."""
    _observers.append(observer)


def choose(level: str) -> None:
    """From now on this is the level. ValueError for another name."""
    global _current
    if level not in LEVELS:
        raise ValueError(f"debug level {level!r} is none of {', '.join(LEVELS)}")
    before, _current = _current, level
    if (before == DETAIL) != (level == DETAIL):
        for observer in _observers:
            observer(level == DETAIL)

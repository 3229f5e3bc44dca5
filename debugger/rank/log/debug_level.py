"""The debug level: what the user asked for, what the program sets at run time.

torch itself never gets DETAIL, at which it would put a wrapper of its own around each backend. That
wrapper crashes DDP on gloo, and does not look at roots, reduce ops, splits and messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ...record.debug_levels import DETAIL, INFO, LEVELS
from .. import torch_private

LEVEL = "DISTDEBUG_LEVEL"
UNASKED = "DISTDEBUG_LEVEL_UNASKED"
"""Set where the level is distdebug's own choice: the program is told what torch would tell it."""

_current = INFO
_shown = INFO
_observers: list[Callable[[bool], None]] = []


def observe() -> None:
    """From now on torch's public functions of the debug level ask and tell us."""
    asked = os.environ.get(LEVEL, INFO).upper()
    unasked = bool(os.environ.get(UNASKED))
    level = torch_private.take_debug_level(shown, choose, _choose_from_start)
    if unasked or level == DETAIL:  # the program may have set torch's variable before the import
        _begin(level if level == DETAIL else asked, level)
    else:
        _begin(asked, asked)


def current() -> str:
    """The level's name."""
    return _current


def shown() -> str:
    """The level that the program is told: what it, or the user, asked for."""
    return _shown


def is_detail() -> bool:
    """Whether calls are checked before they enter the backend."""
    return _current == DETAIL


def on_detail(observer: Callable[[bool], None]) -> None:
    """`observer(is_detail())` is called when that changes."""
    _observers.append(observer)


def choose(level: str) -> None:
    """From now on this is the level. ValueError for another name."""
    global _shown
    if level not in LEVELS:
        raise ValueError(f"debug level {level!r} is none of {', '.join(LEVELS)}")
    _shown = level
    _set(level)


def _begin(level: str, told: str) -> None:
    global _shown, _from_start
    _from_start = (level, told)
    choose(level)
    _shown = told


_from_start = ("INFO", "INFO")


def _choose_from_start() -> None:
    """The program asks for what its environment says, which says nothing of a level: ours, as at
    the start."""
    _begin(*_from_start)


def _set(level: str) -> None:
    global _current
    before, _current = _current, level
    if (before == DETAIL) != (level == DETAIL):
        for observer in _observers:
            observer(level == DETAIL)

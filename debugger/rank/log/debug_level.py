"""The debug level: what the user asked for, what the program sets at run time.

torch itself never gets DETAIL, at which it would put a wrapper of its own around each backend. That
wrapper crashes DDP on gloo, and does not look at roots, reduce ops, splits and messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ...record.log_file import DEBUG_LEVELS, DETAIL, INFO
from ..torch_private.calls import take_debug_level

LEVEL = "DISTDEBUG_LEVEL"
UNASKED = "DISTDEBUG_LEVEL_UNASKED"
"""Set where the level is distdebug's own choice: the program is told what torch would tell it."""


class DebugLevel:
    """The debug level of this process."""

    def __init__(self) -> None:
        self._current = INFO
        self._shown = INFO
        self._from_start = (INFO, INFO)
        self._observers: list[Callable[[bool], None]] = []

    def observe(self) -> None:
        """Makes torch's public functions of the debug level ask and tell this one."""
        asked = os.environ.get(LEVEL, INFO).upper()
        unasked = bool(os.environ.get(UNASKED))
        # A program may ask for what its environment says, which says nothing of a level: it gets
        # ours, as at the start.
        level = take_debug_level(self.shown, self.choose, lambda: self._begin(*self._from_start))
        if unasked or level == DETAIL:  # the program may have set torch's variable before import
            self._begin(level if level == DETAIL else asked, level)
        else:
            self._begin(asked, asked)

    def current(self) -> str:
        """The level's name."""
        return self._current

    def shown(self) -> str:
        """The level that the program is shown: what it, or the user, asked for."""
        return self._shown

    def is_detail(self) -> bool:
        """Whether calls are checked before they enter the backend."""
        return self._current == DETAIL

    def on_detail(self, observer: Callable[[bool], None]) -> None:
        """`observer(is_detail())` is called when that changes."""
        self._observers.append(observer)

    def choose(self, level: str) -> None:
        """Sets the level. ValueError for another name."""
        if level not in DEBUG_LEVELS:
            raise ValueError(f"debug level {level!r} is none of {', '.join(DEBUG_LEVELS)}")
        self._shown = level
        before, self._current = self._current, level
        if (before == DETAIL) != (level == DETAIL):
            for observer in self._observers:
                observer(level == DETAIL)

    def raise_to_detail(self) -> Callable[[], None]:
        """Sets DETAIL. Returns what takes that back, unless the program has set another level."""
        before = self._current, self._shown
        self.choose(DETAIL)

        def take_back() -> None:
            if self._current == DETAIL:
                self.choose(before[0])
                self._shown = before[1]

        return take_back

    def _begin(self, level: str, shown: str) -> None:
        self._from_start = (level, shown)
        self.choose(level)
        self._shown = shown

"""Ends a planned rank in good order after so many steps of an optimiser."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..torch_private import on_optimizer_steps


class EnoughSteps(SystemExit):
    """The rank has made as many steps as the plan is asked for. `finally` blocks run."""


class StepLimit:
    """Counts those of each optimiser; the first that comes to `most` ends the program, which
    `enough` is told."""

    def __init__(self, most: int, enough: Callable[[], None]) -> None:
        self._most = most
        self._enough = enough
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def observe(self) -> None:
        """Begins to count steps."""
        on_optimizer_steps(lambda _: None, self._stepped)

    def _stepped(self, optimizer: Any) -> None:
        made = self._made[optimizer] = self._made.get(optimizer, 0) + 1
        if made >= self._most:
            self._enough()
            raise EnoughSteps(0)

"""`distdebug.precheck()`: DETAIL and every check around a part of the program, as one iteration.

Ranks enter and leave it without a word to each other. Where one is in it and another is not, the
agreement on calls sorts that out (see `agreement.collectives.GroupGuard`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from ..log.debug_level import DebugLevel
from ..log.rank_log import report_own_fault
from ..replicas.check import ReplicaCheck
from .pipeline import Pipeline


class Precheck:
    """The prechecks of this process, of which one may be within another, or on another thread: the
    checks are on while there is any."""

    def __init__(self, level: DebugLevel, pipeline: Pipeline, replicas: ReplicaCheck) -> None:
        self._level = level
        self._pipeline = pipeline
        self._replicas = replicas
        self._lock = threading.RLock()
        self._depth = 0
        self._ends: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Checks everything until its end."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._attempt(self._begin)
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                while self._ends and not self._depth:
                    self._attempt(self._ends.pop())

    def _begin(self) -> None:
        self._ends.append(self._replicas.look_meanwhile())
        self._ends.append(self._level.raise_to_detail())
        self._ends.append(partial(self._pipeline.make_all, False))
        self._pipeline.make_all(True)

    @staticmethod
    def _attempt(act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            report_own_fault("a precheck", error)

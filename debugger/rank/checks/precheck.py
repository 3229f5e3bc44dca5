"""`distdebug.precheck()`: DETAIL and every check around a part of the program, as one iteration.

Ranks enter and leave it without a word to each other. Where one is in it and another is not, the
agreement on calls sorts that out (see `agreement.collectives.GroupGuard`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from ..log.rank_log import report_own_fault

Begin = Callable[[], Callable[[], None]]
"""Begins something, and returns what ends it."""


class Precheck:
    """The prechecks of this process, of which one may be within another, or on another thread: the
    checks are on while there is any. `begins`: what checks, in this order."""

    def __init__(self, *begins: Begin) -> None:
        self._begins = begins
        self._lock = threading.RLock()
        self._depth = 0
        self._ends: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Checks everything until its end."""
        with self._lock:
            self._depth += 1
            for begin in self._begins if self._depth == 1 else ():
                with _guarded():
                    self._ends.append(begin())
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                while self._ends and not self._depth:
                    with _guarded():
                        self._ends.pop()()


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        report_own_fault("a precheck", error)

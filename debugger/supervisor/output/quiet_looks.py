"""Counts the time in which a process that shows output, and is waited for, has done nothing
visible."""

from __future__ import annotations


class QuietLooks:
    """Looks are counted, and no time: on a crowded machine this process may be given no core for
    seconds, in which the other has gone on and nobody has looked."""

    def __init__(self, every_s: float, limit_s: float, done: int) -> None:
        """A look comes every `every_s`; `limit_s` of them are too many. `done` is how much the
        other has done so far, as a number that grows."""
        self._every_s = every_s
        self._limit_s = limit_s
        self._done = done
        self._quiet = 0

    def too_many(self, done: int, at_work: bool = False) -> bool:
        """Counts one more look. `at_work`: the other is seen to be so, although it has done no
        more."""
        self._quiet = 0 if at_work or done != self._done else self._quiet + 1
        self._done = done
        return self._quiet * self._every_s > self._limit_s

"""The time for which a thread that waits for a peer looks for its answer, and yields, before it
sleeps.

A peer that is at work answers soon, and a sleep and a wake-up take as long; where ranks share a
core, the one that is waited for runs while this one yields. But the system lets other programs run
for milliseconds before whoever yields, and not before whoever is woken up: so where that has
happened threads sleep at once, for a hundred times as long as it took.
"""

from __future__ import annotations

from ..limits import CALL_PAUSE_S


class Yielding:
    """The waits of one group's threads."""

    def __init__(self, span_s: float) -> None:
        """`span_s`: how long each wait looks and yields."""
        self._span_s = span_s
        self._sleeps_until = 0.0

    def until(self, now: float) -> float:
        """Returns when a wait that begins now is to sleep: at once, or after the span."""
        return now if now < self._sleeps_until else now + self._span_s

    def ended(self, until: float, now: float) -> None:
        """Records that a wait has looked, which it was to do until `until`."""
        late_s = now - until
        if late_s > CALL_PAUSE_S:  # ranks of this group give the processor back within that
            self._sleeps_until = now + 100 * late_s

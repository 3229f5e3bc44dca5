"""The clocks of two ends of a link: how far apart they are, and for how long one was not heard.

The offset of another host's monotonic clock from this one's is found as NTP does it: a message with
our time goes there and comes back with theirs. The truth is within half of the round trip around
the middle; so the quickest of the last exchanges counts.

Silence is counted only while we listened. Whoever is behind hears of nobody: what was said lies in
a queue that is not read yet, or was never asked for since our pings are late. A process that the
system has not run for some seconds, or that reads as fast as it can and never comes to the end of
its queue, may therefore not take anybody for lost. So a clock runs here only while the queue is
read to its end, and a stretch in which we were not there counts for a moment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .limits import MISSED_S, QUEUE_EVERY_S

REMEMBERED = 16
"""Exchanges; at two a second that is eight seconds, in which clocks drift apart by less than 1 us
for each part in a million that they differ."""


@dataclass(slots=True)
class Offset:
    """`add_ns` to their clock gives ours; the truth is within `error_ns` of it. The first exchange
    is taken as it is; later ones change the offset only where they know it better, or where it has
    drifted out of what they allow: times that were corrected before stay comparable."""

    add_ns: int = 0
    error_ns: int = -1
    _last: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def known(self) -> bool:
        """Whether there was an exchange."""
        return self.error_ns >= 0

    def exchanged(self, sent_ns: int, theirs_ns: int, received_ns: int) -> bool:
        """Take in one exchange; True where the offset has changed."""
        trip_ns = received_ns - sent_ns
        if trip_ns < 0:
            return False
        add_ns, error_ns = (sent_ns + received_ns) // 2 - theirs_ns, trip_ns // 2
        self._last.append((error_ns, add_ns))
        error_ns, add_ns = min(self._last)
        outside = abs(add_ns - self.add_ns) > error_ns + max(self.error_ns, 0)
        if self.known and not outside and error_ns >= self.error_ns // 2:
            return False
        self.add_ns, self.error_ns = add_ns, error_ns
        return True


@dataclass(slots=True)
class Listening:
    """The time that we have listened, in all."""

    total_s: float = 0.0
    absent_s: float = 0.0
    """The last time that we were not there for longer than a moment; it ended at `absent_at_s`."""
    absent_at_s: float = 0.0
    _last_s: float = -1.0

    def looked(self, now_s: float, to_the_end: bool) -> None:
        """Notes that the queue was looked at now, and whether it was read to its end."""
        if to_the_end and self._last_s >= 0:
            self.total_s += min(max(0.0, now_s - self._last_s), QUEUE_EVERY_S)
        if self._last_s >= 0 and now_s - self._last_s > MISSED_S:
            self.absent_s, self.absent_at_s = now_s - self._last_s, self.total_s
        self._last_s = now_s

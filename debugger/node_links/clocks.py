"""The offset of another host's monotonic clock from this one's, and how well that is known.

As NTP does it: a message with our time goes there and comes back with theirs. The truth is within
half of the round trip around the middle; so the quickest of the last exchanges counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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

"""The time of events on a GPU, by the host's clock: from the time between two events.

Events know only how long after each other they happened. One event whose moment the host knows
makes the others' moments known; it is renewed, for the time between is a float of milliseconds,
which after an hour is exact to a quarter of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..limits import RENEW_NS
from .device import Device


class GpuClock:
    """The clock of one device; used by one thread."""

    def __init__(
        self, device: Device, index: int, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._device = device
        self._index = index
        self._now_ns = now_ns
        self._stream: Any = None
        self._known: tuple[Any, int] | None = None
        self._asked: tuple[Any, int] | None = None

    def tick(self) -> None:
        """Renew what is known when it is old. To be called again and again; it never waits."""
        now_ns = self._now_ns()
        if self._asked is not None:
            event, asked_ns = self._asked
            if not event.query():
                return
            # Its own stream is empty: it happened when it was asked for, or was seen just now.
            self._known, self._asked = (event, asked_ns), None
            return
        if self._known is not None and now_ns - self._known[1] < RENEW_NS:
            return
        with self._device.entered(self._index):
            if self._stream is None:
                self._stream = self._device.stream(self._index)
            event = self._device.event(timed=True)
            event.record(self._stream)
        self._asked = (event, self._now_ns())

    def release(self) -> None:
        """Gives its stream back; the clock is not used any more."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._device.give_back(stream, self._index)

    @property
    def known(self) -> bool:
        """Whether it is set: soon after the first `tick`."""
        return self._known is not None

    def moment_ns(self, event: Any) -> int | None:
        """When an event that has happened did so; None while the clock is not set."""
        if self._known is None:
            return None
        known, known_ns = self._known
        return known_ns + round(float(known.elapsed_time(event)) * 1e6)

    def span_ns(self, started: Any, ended: Any) -> tuple[int, int] | None:
        """Returns when two events happened, the first one's time and the second's."""
        start_ns = self.moment_ns(started)
        if start_ns is None:
            return None
        return start_ns, start_ns + max(0, round(started.elapsed_time(ended) * 1e6))

"""Deadlines that do not pass before those whom they are about have come, however late that is on a
crowded machine."""

from __future__ import annotations

import threading
import time

from distcore.base import deadline


class Gate:
    """Within the `with` block no `Deadline` passes before as many as `count` have come; from then
    on each has its whole time."""

    def __init__(self, count: int = 1) -> None:
        self._missing = count
        self._lock = threading.Lock()
        self._open_since_s: float | None = None

    def __enter__(self) -> Gate:
        deadline.set_held(self._held_s)
        return self

    def __exit__(self, *_exception: object) -> None:
        deadline.set_held(lambda _began, _now: 0.0)

    def come(self) -> None:
        """One more is there."""
        with self._lock:
            self._missing -= 1
            if self._missing == 0:
                self._open_since_s = time.monotonic()

    def _held_s(self, began: float, now: float) -> float:
        since_s = now if self._open_since_s is None else self._open_since_s
        return max(0.0, since_s - began)

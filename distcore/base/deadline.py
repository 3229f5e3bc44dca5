"""Deadlines that can be put off: a rank that a debugger holds is not late.

Nobody is asked before a deadline has passed, so that it costs nothing until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..limits import FIRST_PAUSE_S, REST_PAUSE_S

_now = time.monotonic


def _never_held(_began: float, _now: float) -> float:
    return 0.0


_held_s: Callable[[float, float], float] = _never_held


def set_held(held_s: Callable[[float, float], float]) -> None:
    """`held_s(began, now)` tells for how many seconds of that time (by time.monotonic()) a rank was
    held, which are not counted."""
    global _held_s
    _held_s = held_s


class Deadline(float):
    """A moment by time.monotonic(): `limit_s` after `began`, or as much later as it was put off."""

    __slots__ = ("began", "limit_s")

    began: float
    limit_s: float

    @classmethod
    def after(cls, limit_s: float) -> Deadline:
        """Returns the deadline `limit_s` seconds from now."""
        began = _now()
        made = cls(began + limit_s)
        made.began = began
        made.limit_s = limit_s
        return made


class Timer:
    """Real time; tests have another."""

    def now(self) -> float:
        """Returns the time as time.monotonic() does."""
        return _now()

    def pause(self, pause_s: float) -> None:
        time.sleep(pause_s)


_REAL_TIME = Timer()


def wait_for(
    condition: Callable[[], bool],
    deadline: float,
    *,
    first_pause_s: float = FIRST_PAUSE_S,
    check: Callable[[], object] = lambda: None,
    clock: Timer = _REAL_TIME,
) -> bool:
    """Ask until it is true; whether it was in time. `check` is called in between and may raise.

    The pauses grow from the first one to `REST_PAUSE_S`; Python's signals are seen between them.
    """
    while not condition():
        check()
        if clock.now() >= deadline:
            deadline = extended(deadline)
            if clock.now() >= deadline:
                return False
        clock.pause(first_pause_s)
        first_pause_s = min(2 * first_pause_s, REST_PAUSE_S)
    return True


def timed_out(deadline: float) -> str:
    """Returns ` (timed out after 300ms)`, as torch's own backends say it, for programs that look
    for it; nothing where it is not known how long that was."""
    limit_s = getattr(deadline, "limit_s", None)
    return "" if limit_s is None else f" (timed out after {1000 * limit_s:.0f}ms)"


def extended(deadline: float) -> float:
    """The deadline, which has passed, or a later one."""
    if not isinstance(deadline, Deadline):
        return deadline
    held_s = _held_s(deadline.began, _now())
    if held_s <= 0:
        return deadline
    later = Deadline(deadline.began + deadline.limit_s + held_s)
    later.began = deadline.began
    later.limit_s = deadline.limit_s
    return later

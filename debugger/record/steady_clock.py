"""Unix time that never steps: the wall clock as it was when first asked, and monotonic since.

Every duration, and every order of two events on this host, is taken from it; somebody may set the
wall clock in the middle of a run. The monotonic clock is one for all processes of a host.
"""

from __future__ import annotations

import functools
import time


@functools.cache
def offset_ns() -> int:
    """Returns what this process adds to the monotonic clock; fixed from the first call on."""
    return time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """The present, in Unix nanoseconds."""
    return time.monotonic_ns() + offset_ns()

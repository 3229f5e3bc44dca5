"""Waits until something can be read, whatever its descriptor's number is.

`select.select` takes none beyond 1023. A rank with many files, connections or shared tensors has
them, and so has a process that reads the records of a thousand ranks.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Stream(Protocol):
    """An object with a descriptor."""

    def fileno(self) -> int: ...


_S = TypeVar("_S", bound=Stream | int)


def readable(streams: Sequence[_S], timeout_s: float | None = None) -> list[_S]:
    """Returns the streams that have something to read, or have ended; none after so many seconds
    (None: wait for ever)."""
    poll = select.poll()
    by_number = {one if isinstance(one, int) else one.fileno(): one for one in streams}
    for number in by_number:
        poll.register(number, select.POLLIN)
    limit_ms = None if timeout_s is None else max(0.0, timeout_s * 1000)
    return [by_number[number] for number, _ in poll.poll(limit_ms)]

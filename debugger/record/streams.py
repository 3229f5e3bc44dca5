"""Waits until streams can be read, or written."""

from __future__ import annotations

import io
import select
from collections.abc import Sequence

TYPE_CHECKING = False  # the process that shows what ranks print uses this: see its `drain`
if TYPE_CHECKING:
    from typing import Any


def readable(streams: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
    """Returns the streams, or descriptors, that have something to read, or have ended; none after
    so many seconds (None: wait for ever).

    `select.select` takes no descriptor beyond 1023. A rank with many files, connections or shared
    tensors has them, and so has a process that reads the records of a thousand ranks.
    """
    poll = select.poll()
    by_number = {one if isinstance(one, int) else one.fileno(): one for one in streams}
    for number in by_number:
        poll.register(number, select.POLLIN)
    limit_ms = None if timeout_s is None else max(0.0, timeout_s * 1000)
    return [by_number[number] for number, _ in poll.poll(limit_ms)]


class _PatientFile(io.FileIO):
    def write(self, data: Any) -> int:
        while True:
            written: int | None = super().write(data)
            if written is not None:
                return written
            poll = select.poll()
            poll.register(self, select.POLLOUT)
            poll.poll()


def patient(stream: io.TextIOWrapper, encoding: str | None = None) -> io.TextIOWrapper:
    """Returns a stream to the same descriptor, which stays open with `stream`, and waits where
    nothing can be written now: one of our standard streams may be non-blocking, since whoever
    shares it has made it so, and full. Python's own streams lose what they had to write then.
    Errors are raised by the write or flush that meets them, and none is when the interpreter
    ends."""
    return io.TextIOWrapper(
        io.BufferedWriter(_PatientFile(stream.fileno(), "wb", closefd=False)),
        encoding=encoding or stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )

"""Text streams that wait where nothing can be written now: one of our standard streams may be
non-blocking, since whoever shares it has made it so, and full.

Python's own streams lose what they had to write then.
"""

from __future__ import annotations

import io
import select

TYPE_CHECKING = False  # the process that shows what ranks print uses it: see its `drain`
if TYPE_CHECKING:
    from typing import Any


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
    """A stream to the same descriptor, which stays open with `stream`. Errors are raised by the
    write or flush that meets them, and none is when the interpreter ends."""
    return io.TextIOWrapper(
        io.BufferedWriter(_PatientFile(stream.fileno(), "wb", closefd=False)),
        encoding=encoding or stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )

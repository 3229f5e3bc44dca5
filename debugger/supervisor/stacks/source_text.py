"""The source that frames of another process stand in, read where that process has its files.

A rank in a container has files of its own: what lies at the same path here may be another program.
The paths are the process's own word: nothing but a regular file is opened, and no more than
`MOST_BYTES` of it are read.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import decode_source

from ...record.safe_files import read_regular
from .stacks import Frame

MOST_BYTES = 1 << 21


def line_of(frame: Frame) -> str:
    """The line that the frame stands at; "" where it cannot be read."""
    return line_at(frame.root + frame.file, frame.line)


def line_at(path: str, number: int) -> str:
    """Line `number` of the file; "" where there is none."""
    lines = text_of(path).splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


@lru_cache(maxsize=64)
def text_of(path: str) -> str:
    """The source file; "" where it cannot be read."""
    if not path.startswith("/"):
        return ""
    try:
        return decode_source(read_regular(path, MOST_BYTES, follow_links=True))
    except (OSError, ValueError, SyntaxError):
        return ""

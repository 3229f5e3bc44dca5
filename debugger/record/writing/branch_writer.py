"""The branches that a rank took between its calls, which it puts next to its flight record.

One file for each process, `pid-<pid>.branches`, allocated in full when it is made:

    HEADER, then the heap: a JSON array a line
        ["branch", file, line, function, source, part, names, shown]
        ["event", number of its branch, outcome]
        ["group", name, incarnation]
      each kind numbered from 1 in its order
    ring of intervals: a JSON array a line
        [group, sequence number or a flag, thread, [numbers of events], values]

An interval ends with a call of its thread, or is a part of one (`PART`), where nothing has been
called for a while. Values stand in the order of the events: of each a list in the order of the
branch's `names`, or 0; where they are too long there are none. The header counts the bytes ever
written; whoever reads copies the ring and leaves out what may have been overwritten meanwhile: what
is now older than the ring is long, less one line. All numbers are little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from ..lost_pages import kept_file

MAGIC, VERSION = b"DDBRANCH", 2
HEADER = Struct("<8sIIQQ")
"""magic, version, unused, bytes of the heap in use, bytes ever written into the ring"""
HEAP_AT, HEAP_BYTES = 64, 1 << 20
RING_AT, RING_BYTES = HEAP_AT + HEAP_BYTES, 3 << 19
FILE_BYTES = RING_AT + RING_BYTES
MOST_LINE = 16 << 10
PART, MESSAGE = -1, -2


def file_name(pid: int) -> str:
    """Returns the name of the file of a process."""
    return f"pid-{pid}.branches"


class BranchWriter:
    """Writes the file of this process, from one thread at a time. Raises OSError where it cannot be
    made."""

    def __init__(self, path: Path) -> None:
        self._map = kept_file(path, FILE_BYTES)
        self._used = self._written = 0
        self._numbers: dict[str, int] = {}
        self._write_header()

    def define(self, kind: str, *row: Any) -> int:
        """The number of a new row of the heap; 0 where there is no room for it."""
        text = json.dumps([kind, *row]).encode() + b"\n"
        if self._used + len(text) > HEAP_BYTES:
            return 0
        at = HEAP_AT + self._used
        self._map[at : at + len(text)] = text
        self._used += len(text)
        self._write_header()
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return number

    def interval(
        self, group: int, seq: int, thread: int, events: Sequence[int], values: Sequence[Any]
    ) -> None:
        """Add an interval; `values` are harmless to encode as JSON."""
        # To encode an interval without values as JSON would take ten times as long.
        line = f"[{group}, {seq}, {thread}, {[*events]}, "
        text = f"{line}{json.dumps(values) if any(values) else []}]\n".encode()
        if len(text) > MOST_LINE:
            text = f"{line}[]]\n".encode()
        at = self._written % RING_BYTES
        last, first = text[RING_BYTES - at :], text[: RING_BYTES - at]
        self._map[RING_AT + at : RING_AT + at + len(first)] = first
        self._map[RING_AT : RING_AT + len(last)] = last
        self._written += len(text)
        self._write_header()

    def _write_header(self) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, 0, self._used, self._written)

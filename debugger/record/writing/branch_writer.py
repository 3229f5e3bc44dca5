"""The branches that a rank took between its calls, which it puts next to its flight record.

One file for each process, `pid-<pid>.branches`, allocated in full when it is made:

    HEADER, then the heap: a JSON array a line
        ["branch", file, line, function, source, part, names, shown]
        ["event", number of its branch, outcome]
        ["group", name, incarnation]
        ["path", [numbers of events]]
      each kind numbered from 1 in its order
    ring of `SLOTS` intervals: SLOT
    ring of texts: JSON [path or null, values] of an interval, behind TEXT

An interval ends with a call of its thread, or is a part of one (`PART`), where nothing has been
called for a while. Its path is one of the heap, or stands in its text (0), where the heap is full.
Values stand in the order of the path: of each event a list in the order of the branch's `names`, or
null. A reader takes a slot only if its two numbers agree, and a text only if it was not overwritten
meanwhile. All numbers are little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from ..lost_pages import kept_file

MAGIC, VERSION = b"DDBRANCH", 1
HEADER = Struct("<8sIIQQQ")
"""magic, version, unused, bytes of the heap in use, intervals, bytes of texts ever written"""
SLOT = Struct("<QQIHHQQ")
"""number + 1, sequence number or a flag, path, group, thread, where its text begins + 1, number + 1
again"""
TEXT = Struct("<QI")
"""number + 1 of the interval, bytes of the text"""
SLOTS = 16_384
HEAP_BYTES = 1 << 20
TEXT_BYTES = 1 << 20
MOST_TEXT = 16 << 10
HEAP_AT = 64
SLOTS_AT = HEAP_AT + HEAP_BYTES
TEXTS_AT = SLOTS_AT + SLOTS * SLOT.size
FILE_BYTES = TEXTS_AT + TEXT_BYTES
PART, MESSAGE = (1 << 64) - 1, (1 << 64) - 2
PATHS_UNTIL = HEAP_BYTES // 2
"""From here on the heap is for branches, not for paths."""


def file_name(pid: int) -> str:
    """Returns the name of the file of a process."""
    return f"pid-{pid}.branches"


class BranchWriter:
    """Writes the file of this process, from one thread at a time. Raises OSError where it cannot be
    made."""

    def __init__(self, path: Path) -> None:
        self._map = kept_file(path, FILE_BYTES)
        self._used = self._intervals = self._texts = 0
        self._numbers: dict[str, int] = {}
        self._paths: dict[tuple[int, ...], int] = {}
        self._write_header()

    def define(self, kind: str, *row: Any) -> int:
        """The number of a new row of the heap; 0 where there is no room for it."""
        text = json.dumps([kind, *row]).encode() + b"\n"
        if self._used + len(text) > (PATHS_UNTIL if kind == "path" else HEAP_BYTES):
            return 0
        at = HEAP_AT + self._used
        self._map[at : at + len(text)] = text
        self._used += len(text)
        self._write_header()
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return number

    def interval(
        self, group: int, seq: int, thread: int, path: tuple[int, ...], values: Sequence[Any]
    ) -> None:
        """Add an interval; `values` are harmless to encode as JSON."""
        number = self._paths.get(path)
        if number is None:
            number = self.define("path", path) if path else 0
            if number:
                self._paths[path] = number
        mark = self._intervals + 1
        at = 0
        if path and (not number or any(values)):
            text = json.dumps([None if number else path, values]).encode()
            at = self._write_text(mark, text) if len(text) <= MOST_TEXT else 0
        place = SLOTS_AT + self._intervals % SLOTS * SLOT.size
        SLOT.pack_into(self._map, place, mark, seq, number, group, thread, at, mark)
        self._intervals = mark
        self._write_header()

    def _write_text(self, mark: int, text: bytes) -> int:
        size = TEXT.size + len(text)
        start = self._texts
        if start % TEXT_BYTES + size > TEXT_BYTES:
            start += TEXT_BYTES - start % TEXT_BYTES
        self._texts = start + size
        self._write_header()  # what is overwritten now is no longer read
        at = TEXTS_AT + start % TEXT_BYTES
        self._map[at : at + size] = TEXT.pack(mark, len(text)) + text
        return start + 1

    def _write_header(self) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, 0, self._used, self._intervals, self._texts)

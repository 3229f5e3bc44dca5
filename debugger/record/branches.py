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
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from .lost_pages import keep
from .safe_files import open_regular, parsed, whole
from .safe_text import clean
from .secret_words import REDACTED, is_secret, masked_text
from .snapshot import Branch, GroupKey, Interval, Taken

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
_HEAP_AT = 64
_SLOTS_AT = _HEAP_AT + HEAP_BYTES
_TEXTS_AT = _SLOTS_AT + SLOTS * SLOT.size
FILE_BYTES = _TEXTS_AT + TEXT_BYTES
PART, MESSAGE = (1 << 64) - 1, (1 << 64) - 2
_PATHS_UNTIL = HEAP_BYTES // 2
"""From here on the heap is for branches, not for paths."""
_MOST_VALUE = 60


def file_name(pid: int) -> str:
    """Returns the name of the file of a process."""
    return f"pid-{pid}.branches"


class BranchWriter:
    """Writes the file of this process, from one thread at a time. Raises OSError where it cannot be
    made."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._map = mmap.mmap(descriptor, FILE_BYTES)
            keep(self._map)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        self._used = self._intervals = self._texts = 0
        self._numbers: dict[str, int] = {}
        self._paths: dict[tuple[int, ...], int] = {}
        self._write_header()

    def define(self, kind: str, *row: Any) -> int:
        """The number of a new row of the heap; 0 where there is no room for it."""
        text = json.dumps([kind, *row]).encode() + b"\n"
        if self._used + len(text) > (_PATHS_UNTIL if kind == "path" else HEAP_BYTES):
            return 0
        at = _HEAP_AT + self._used
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
        place = _SLOTS_AT + self._intervals % SLOTS * SLOT.size
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
        at = _TEXTS_AT + start % TEXT_BYTES
        self._map[at : at + size] = TEXT.pack(mark, len(text)) + text
        return start + 1

    def _write_header(self) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, 0, self._used, self._intervals, self._texts)


class BranchFile:
    """Reads one file while it is written, each time when it is asked. Implements
    `snapshot.Branches`; where there is no such file, or none that can be read, nothing is on record
    in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._read_to = 0
        self._rows: dict[str, list[Any]] = {}

    @property
    def on_record(self) -> bool:
        """Whether there is such a file."""
        try:
            return self._opened() is not None
        except (OSError, ValueError):
            return False

    def intervals(self, group: GroupKey, after: int) -> Sequence[Interval] | None:
        """Those after call `after` of the group (-1: from the start), oldest first; None where that
        is no longer on record, or nothing ever was."""
        try:
            return self._intervals(group, after)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError):
            return None

    def _intervals(self, group: GroupKey, after: int) -> Sequence[Interval] | None:
        mapped = self._opened()
        _, _, _, used, count, texts = HEADER.unpack_from(mapped, 0)
        self._read_heap(mapped, min(used, HEAP_BYTES))
        found: list[Interval] = []
        for number in range(count, max(0, count - SLOTS), -1):
            at = _SLOTS_AT + (number - 1) % SLOTS * SLOT.size
            mark, seq, path, of, thread, text, last = SLOT.unpack_from(mapped, at)
            if not mark == last == number:
                return None
            key = self._row("group", of) if of else None
            if seq == after and key == group:
                return found[::-1]
            taken = tuple(self._taken(mapped, path, number, text, texts))
            call = None if seq in (PART, MESSAGE) else seq
            found.append(Interval(key, call, thread, seq != PART, taken))
        return found[::-1] if after < 0 and 0 < count <= SLOTS else None

    def _opened(self) -> mmap.mmap:
        if self._map is None:
            descriptor = open_regular(self._path)
            try:
                self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
                keep(self._map)
            finally:
                os.close(descriptor)
        if os.stat(self._path).st_size < FILE_BYTES or len(self._map) != FILE_BYTES:
            raise ValueError(f"{self._path} is cut short")
        if HEADER.unpack_from(self._map, 0)[:2] != (MAGIC, VERSION):
            raise ValueError(f"{self._path} holds no branches, or those of another version")
        return self._map

    def _read_heap(self, mapped: mmap.mmap, used: int) -> None:
        for line in mapped[_HEAP_AT + self._read_to : _HEAP_AT + used].split(b"\n")[:-1]:
            kind, *row = parsed(line)
            self._rows.setdefault(str(kind), []).append(_READ[kind](*row))
            self._read_to += len(line) + 1

    def _row(self, kind: str, number: int) -> Any:
        return self._rows[kind][number - 1] if number > 0 else None

    def _taken(
        self, mapped: mmap.mmap, path: int, number: int, text: int, texts: int
    ) -> Iterator[Taken]:
        values: Any = ()
        events = self._row("path", path) or ()
        if text and texts - (text - 1) <= TEXT_BYTES:
            at = _TEXTS_AT + (text - 1) % TEXT_BYTES
            mark, size = TEXT.unpack_from(mapped, at)
            if mark == number and size <= MOST_TEXT:
                inline, values = parsed(mapped[at + TEXT.size : at + TEXT.size + size])
                events = events or inline
        for index, event in enumerate(events):
            branch, outcome = self._row("event", whole(event))
            given = values[index] if index < len(values) else None
            branch = self._row("branch", branch)
            yield Taken(branch, outcome, _shown(branch, given) if given else None)


def _shown(branch: Branch, given: Sequence[Any]) -> tuple[str | None, ...]:
    return tuple(
        None if one == [] else REDACTED if is_secret(name) else _value(one)
        for name, one in zip(branch.names, given, strict=True)
    )


def _value(given: Any) -> str:
    """Text in a list stands for itself: `float32[3]`."""
    if isinstance(given, list):
        return clean(str(given[0]), _MOST_VALUE)
    if isinstance(given, float):
        return f"{given:.10g}"
    return clean(masked_text(repr(given)), _MOST_VALUE)


def _branch(
    file: str, line: int, function: str, source: str, part: str, names: list[str], shown: list[str]
) -> Branch:
    texts = (clean(masked_text(str(one)), 200) for one in (file, function, source, part))
    file, function, source, part = texts
    return Branch(file, whole(line), function, source, part, tuple(names), tuple(shown))


_READ: dict[str, Any] = {
    "branch": _branch,
    "event": lambda branch, outcome: (whole(branch), clean(str(outcome), 200)),
    "group": lambda name, incarnation: (str(name), whole(incarnation)),
    "path": lambda events: [whole(one) for one in events],
}

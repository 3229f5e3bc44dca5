"""Reads the branches that a rank took between its calls: see `writing.branch_writer`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..lost_pages import keep
from ..safe_files import open_regular, parsed, whole
from ..safe_text import clean
from ..secret_words import REDACTED, is_secret, masked_text
from ..snapshot import Branch, GroupKey, Interval, Taken
from ..writing import branch_writer as layout

_MOST_VALUE = 60


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
        """Returns those after call `after` of the group (-1: from the start), oldest first; None
        where that is no longer on record, or nothing ever was."""
        try:
            return self._intervals(group, after)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError):
            return None

    def _intervals(self, group: GroupKey, after: int) -> Sequence[Interval] | None:
        mapped = self._opened()
        lines, is_whole = _lines(mapped)
        self._read_heap(mapped)
        found: list[Interval] = []
        for line in reversed(lines):
            of, seq, thread, events, values = parsed(line)
            key = self._row("group", whole(of))
            if seq == after and key == group:
                return found[::-1]
            taken = tuple(self._taken(events, values))
            call = None if seq in (layout.PART, layout.MESSAGE) else whole(seq)
            found.append(Interval(key, call, whole(thread), seq != layout.PART, taken))
        return found[::-1] if after < 0 and is_whole and found else None

    def _opened(self) -> mmap.mmap:
        if self._map is None:
            descriptor = open_regular(self._path)
            try:
                self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
                keep(self._map)
            finally:
                os.close(descriptor)
        if os.stat(self._path).st_size < layout.FILE_BYTES or len(self._map) != layout.FILE_BYTES:
            raise ValueError(f"{self._path} is cut short")
        if layout.HEADER.unpack_from(self._map, 0)[:2] != (layout.MAGIC, layout.VERSION):
            raise ValueError(f"{self._path} holds no branches, or those of another version")
        return self._map

    def _read_heap(self, mapped: mmap.mmap) -> None:
        used = min(layout.HEADER.unpack_from(mapped, 0)[3], layout.HEAP_BYTES)
        heap = mapped[layout.HEAP_AT + self._read_to : layout.HEAP_AT + used]
        for line in heap.split(b"\n")[:-1]:
            kind, *row = parsed(line)
            self._rows.setdefault(str(kind), []).append(_READ[kind](*row))
            self._read_to += len(line) + 1

    def _row(self, kind: str, number: int) -> Any:
        return self._rows[kind][number - 1] if number > 0 else None

    def _taken(self, events: Sequence[Any], values: Sequence[Any]) -> Iterator[Taken]:
        for event, given in zip_longest(events, values):
            branch, outcome = self._row("event", whole(event))
            branch = self._row("branch", branch)
            yield Taken(branch, outcome, _shown(branch, given) if given else None)


def _lines(mapped: mmap.mmap) -> tuple[list[bytes], bool]:
    """Returns the lines of the ring, and whether they are all that were ever written."""
    size = layout.RING_BYTES
    written = layout.HEADER.unpack_from(mapped, 0)[4]
    ring, at = mapped[layout.RING_AT : layout.RING_AT + size], written % size
    text = ring[:written] if written <= size else ring[at:] + ring[:at]
    overwritten_to = layout.HEADER.unpack_from(mapped, 0)[4] + layout.MOST_LINE - size
    lost = overwritten_to - max(0, written - size)
    if lost <= 0:
        return text.split(b"\n")[:-1], True
    return text[lost:].split(b"\n")[1:-1], False


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
}

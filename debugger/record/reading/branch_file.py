"""Reads the branches that a rank took between its calls: see `writing.branch_writer`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
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
        _, _, _, used, count, texts = layout.HEADER.unpack_from(mapped, 0)
        self._read_heap(mapped, min(used, layout.HEAP_BYTES))
        found: list[Interval] = []
        for number in range(count, max(0, count - layout.SLOTS), -1):
            at = layout.SLOTS_AT + (number - 1) % layout.SLOTS * layout.SLOT.size
            mark, seq, path, of, thread, text, last = layout.SLOT.unpack_from(mapped, at)
            if not mark == last == number:
                return None
            key = self._row("group", of) if of else None
            if seq == after and key == group:
                return found[::-1]
            taken = tuple(self._taken(mapped, path, number, text, texts))
            call = None if seq in (layout.PART, layout.MESSAGE) else seq
            found.append(Interval(key, call, thread, seq != layout.PART, taken))
        return found[::-1] if after < 0 and 0 < count <= layout.SLOTS else None

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

    def _read_heap(self, mapped: mmap.mmap, used: int) -> None:
        heap = mapped[layout.HEAP_AT + self._read_to : layout.HEAP_AT + used]
        for line in heap.split(b"\n")[:-1]:
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
        if text and texts - (text - 1) <= layout.TEXT_BYTES:
            at = layout.TEXTS_AT + (text - 1) % layout.TEXT_BYTES
            mark, size = layout.TEXT.unpack_from(mapped, at)
            at += layout.TEXT.size
            if mark == number and size <= layout.MOST_TEXT:
                inline, values = parsed(mapped[at : at + size])
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

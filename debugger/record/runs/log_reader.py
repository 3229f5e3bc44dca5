"""Reads the logs of all ranks as one: records and printed lines, merged in time order.

What a rank prints has no time of its own. The supervisor keeps beside each `<rank>.out` and `.err`
when it saw how much of it (`.times`, pairs of offset and Unix nanoseconds), about every 50 ms; a
printed line has the time at which it was seen whole. Files are read in pieces and never held open,
so that neither large logs nor many ranks matter.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..log_file import RECORDS, STDERR, STREAMS, TIMES_ENTRY, older, times_path
from ..safe_files import cost_bytes, open_regular

MAX_LINE_BYTES = 1 << 19
READ_BYTES = 1 << 16
MOST_PARSED_COST_BYTES = 32 << 20
"""The most memory over all places of a line where a record may begin; bounds the time, too."""
MOST_STARTS = 64
"""The most places of a line where a record may begin: a torn one may itself hold objects that look
like records."""
_NAME = re.compile(r"(?:(0|[1-9]\d{0,8})|pid-([1-9]\d{0,9}))\.(out|err|jsonl)")
_RECORD_START = b'{"time_ns":'


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, with its `fields`, or a line that a rank printed, without any.

    `rank` is None for a process that never knew its own. `order` sorts all entries; within one
    file it never goes back.
    """

    order: tuple[int, int, int, str]
    time_ns: int
    rank: int | None
    stream: str
    line: bytes
    fields: dict[str, Any] = field(default_factory=dict)


class Tail:
    """The lines of one growing file, each once, also when it is emptied or set aside meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self.rest = b""
        """The line that has no end yet."""
        self.files = 0
        """The number of files that it has begun to read: lines' ends are counted anew in each."""

    @property
    def path(self) -> Path:
        """The file that is being read, by the name that it has by now."""
        before = older(self._path)
        return before if self._inode and self._inode == _inode(before) else self._path

    @property
    def offset(self) -> int:
        """The number of bytes of the file that have been read."""
        return self._offset

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields where each line ends that is whole by now, and the line."""
        while received := self._read():
            end = self._offset - len(received) - len(self.rest)
            *lines, rest = (self.rest + received).split(b"\n")
            self.rest = b""
            if len(rest) > MAX_LINE_BYTES:
                lines.append(rest)
            else:
                self.rest = rest
            for line in lines:
                end += len(line) + 1
                yield end, line

    def _read(self) -> bytes:
        newest, before = _inode(self._path), _inode(older(self._path))
        if not self._inode:
            self._inode = before or newest
        if self._inode and self._inode == newest:
            return self._piece(self._path)
        if self._inode and self._inode == before:
            received = self._piece(older(self._path))
            if received or not newest:
                return received
        if not (self._inode and self._inode == before):
            self.rest = b""  # else the line goes on in the file that took its place
        self._inode, self._offset = newest, 0
        self.files += 1
        return self._piece(self._path) if newest else b""

    def _piece(self, path: Path) -> bytes:
        try:
            with open(open_regular(path), "rb", buffering=0) as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset, self.rest = 0, b""  # somebody emptied it
                    self.files += 1
                file.seek(self._offset)
                received = file.read(READ_BYTES)
        except OSError:
            return b""
        self._offset += len(received)
        return received


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


class _Times:
    """The times when the lines of an output file came."""

    def __init__(self, tail: Tail, start_ns: int) -> None:
        self._tail = tail
        self._file = tail.files
        self._offset = 0
        self._entries: list[tuple[int, int]] = []
        self._next = 0
        self._covered = 0
        self._time_ns = start_ns
        self._dry_at = -1

    def of(self, end: int, unseen_ns: int) -> int:
        """Returns when the line that ends there had come; `unseen_ns`, or the time of the one
        before it, where the supervisor has not seen it."""
        if self._file != self._tail.files:
            self._file, self._offset, self._covered = self._tail.files, 0, 0
            self._entries, self._next, self._dry_at = [], 0, -1
        while self._covered < end:
            if self._next == len(self._entries) and not self._load():
                self._dry_at = self._tail.offset
                return max(self._time_ns, unseen_ns)
            self._covered, self._time_ns = self._entries[self._next]
            self._next += 1
        return self._time_ns

    def _load(self) -> bool:
        if self._dry_at == self._tail.offset:
            return False  # for the lines of one piece it is looked once: there may be 65,536
        try:
            with open(open_regular(times_path(self._tail.path)), "rb", buffering=0) as file:
                file.seek(self._offset)
                received = file.read(READ_BYTES)
        except OSError:
            return False
        received = received[: len(received) // TIMES_ENTRY.size * TIMES_ENTRY.size]
        self._offset += len(received)
        self._entries, self._next = list(TIMES_ENTRY.iter_unpack(received)), 0
        return bool(self._entries)


class _Source:
    """A file of a rank."""

    def __init__(self, path: Path, rank: int | None, stream: str, start_ns: int) -> None:
        self.rank = rank
        self.stream = stream
        self._tail = Tail(path)
        self._times = _Times(self._tail, start_ns)
        self._latest_ns = start_ns
        # A process without a rank comes after those that have one.
        self._place = (1 << 30 if rank is None else rank, STREAMS.index(stream), path.name)

    def entries(self, unseen_ns: int) -> Iterator[Entry]:
        for end, line in self._tail.lines():
            if self.stream == RECORDS:
                yield from self._record(line)
            else:
                yield self._printed(line, self._times.of(end, unseen_ns))

    def rest(self, unseen_ns: int) -> Iterator[Entry]:
        """A printed line that never got an end; a record's is torn."""
        line, self._tail.rest = self._tail.rest, b""
        if line and self.stream != RECORDS:
            yield self._printed(line, max(self._latest_ns, unseen_ns))

    def _printed(self, line: bytes, time_ns: int) -> Entry:
        return Entry(self._order(time_ns), time_ns, self.rank, self.stream, line)

    def _record(self, line: bytes) -> Iterator[Entry]:
        fields = record_on(line)
        if fields is None:
            return
        time_ns = fields.get("time_ns")
        time_ns = time_ns if isinstance(time_ns, int) else self._latest_ns
        yield Entry(self._order(time_ns), time_ns, self.rank, RECORDS, line, fields)

    def _order(self, time_ns: int) -> tuple[int, int, int, str]:
        # Merging needs sorted streams; two processes that add to one file are not quite.
        self._latest_ns = max(self._latest_ns, time_ns)
        return (self._latest_ns, *self._place)


def record_on(line: bytes) -> dict[str, Any] | None:
    """The record on the line, also where it stands behind others that a full disk has torn; None
    where there is none."""
    start, left = 0, MOST_PARSED_COST_BYTES
    for _ in range(MOST_STARTS):
        piece = line[start:]
        left -= cost_bytes(piece)
        if left < 0:
            return None
        try:
            fields = json.loads(piece)
        except ValueError:
            start = line.find(_RECORD_START, start + 1)
        except RecursionError:
            return None
        else:
            return fields if isinstance(fields, dict) else None
        if start < 0:
            break
    return None


class LogReader:
    """The logs of a run, or some of them. `start_ns`: when it began, in Unix nanoseconds."""

    def __init__(
        self,
        directory: Path,
        start_ns: int,
        streams: tuple[str, ...] = STREAMS,
        ranks: frozenset[int] | None = None,
    ) -> None:
        self._directory = directory
        self._start_ns = start_ns
        self._streams = streams
        self._ranks = ranks
        self._sources: dict[str, _Source] = {}

    @property
    def found(self) -> bool:
        """Whether there is any file of the ranks that are wanted."""
        self._find()
        return bool(self._sources)

    def shows_stderr_of(self, rank: int | None) -> bool:
        """Whether what the rank printed on stderr is among the entries."""
        return f"{rank}.{STDERR}" in self._sources

    def look_in(self, directory: Path) -> None:
        """Look for further files there from now on. Those that were found are read where they are:
        the same ones, under the same names, may stand there as well."""
        self._directory = directory

    def poll(self, unseen_ns: int = 0) -> Iterator[Entry]:
        """Yields what was added since the last call, in time order. `unseen_ns`: the time of
        printed lines which the supervisor has not seen yet."""
        self._find()
        return self._merged([source.entries(unseen_ns) for source in self._sources.values()])

    def finish(self, unseen_ns: int = 0) -> Iterator[Entry]:
        """Printed lines that never got an end."""
        return self._merged([source.rest(unseen_ns) for source in self._sources.values()])

    @staticmethod
    def _merged(streams: list[Iterator[Entry]]) -> Iterator[Entry]:
        return heapq.merge(*streams, key=lambda entry: entry.order)

    def _find(self) -> None:
        try:
            names = [
                match for one in os.listdir(self._directory) if (match := _NAME.fullmatch(one))
            ]
        except OSError:
            return  # it vanished: what was found before may still be open to us
        for match in names:
            rank = int(match[1]) if match[1] else None
            wanted = self._ranks is None or rank in self._ranks
            if match[3] in self._streams and wanted and match[0] not in self._sources:
                path = self._directory / match[0]
                self._sources[match[0]] = _Source(path, rank, match[3], self._start_ns)

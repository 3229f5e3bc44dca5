"""The changes in a flight record, or in a file of digests of replicas, since they were last told.

A node tells them to its head, and not the whole: a rank that calls without pause writes a megabyte
a second. What readers need to see where it stands is told at once, a few hundred bytes: the header,
the counters, what each thread waits for, the counts and chains of the groups, what is new in the
heap. Of the ring the newest calls are told, those that threads are in, and the last of each group
and channel that rests meanwhile; all new ones where they are few. As soon as the rank stands still,
the last calls follow, and the whole ring when the head asks for it.

Whatever is not told reads as overwritten at the other end, since every slot carries its number.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .. import layout
from ..replicas import MOST_REPLICA_BYTES
from ..safe_files import open_regular
from ..writing.branch_writer import FILE_BYTES, HEADER
from .ring import RingReader

FEW_CALLS = 8
"""Up to so many new calls between two samples are told in full; of more only the newest."""
NEWEST_CALLS = 2
STILL_CALLS = 256
"""The number of last calls that are told of a rank that stands still."""
STILL_GROUP_CALLS = 16
COARSE = 16
"""A rank that does not stand still tells of every 16th checkpoint, and of the newest."""
MOST_NEW = 32 << 10
"""Bytes of branches that are told of a rank that does not stand still."""
_CHUNK = 4096
_LINE = 64

Piece = tuple[int, bytes]
"""An offset in the file, and what stands there."""


def changed(mapped: mmap.mmap, told: bytearray, start: int, end: int) -> Iterator[Piece]:
    """Yields the lines of what is mapped that differ from what was told, each from its first
    changed byte to its last; then they are told."""
    for at in range(start, end, _CHUNK):
        now = mapped[at : min(at + _CHUNK, end)]
        if now == told[at : at + len(now)]:
            continue
        for line in range(0, len(now), _LINE):
            piece = now[line : line + _LINE]
            before = told[at + line : at + line + len(piece)]
            if piece != before:
                yield _tell(told, at + line, piece, before)


def _tell(told: bytearray, at: int, now: bytes, before: bytes | bytearray) -> Piece:
    first, last = 0, len(now)
    while now[first] == before[first]:
        first += 1
    while now[last - 1] == before[last - 1]:
        last -= 1
    told[at : at + len(now)] = now
    return at + first, now[first:last]


class RecordSource(RingReader):
    """A flight record of this node. Raises FlightError where it is none."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.size = layout.FILE_BYTES
        self._told = bytearray(layout.RING_OFFSET + layout.RING * layout.SLOT.size)
        self._heap_told = 0
        self._anew = False
        self._mark: tuple[int, ...] = ()
        self._calls_told = 0
        self._surprises_told = 0
        self._lasts: dict[int, int] = {}
        self._still_told = False
        self._filled = False

    @property
    def identity(self) -> tuple[int, int]:
        """The process: its pid, and when it began, in clock ticks."""
        row = layout.HEADER.unpack_from(self._map, 0)
        return int(row[2]), int(row[12])

    def fill(self) -> None:
        """The next sample tells the whole ring."""
        self._filled = True

    def anew(self) -> None:
        """Nothing counts as told. The other end may still have what was told once and is zero by
        now, as the end of a text that has become shorter: zeros are told, too."""
        self._anew = True
        self._told = bytearray(len(self._told))
        self._heap_told = self._surprises_told = 0
        self._still_told = False

    def sample(self, still_calls: int = STILL_CALLS) -> list[Piece]:
        """Returns what has changed. In this order, so that nothing is told that refers to what is
        not. Of a rank that stands still so many of its last calls are told."""
        if not self.still_whole():
            return []
        mark = self.change_mark
        still = mark == self._mark
        # All but how much of the heap is in use: that belongs to the heap, which is read last.
        found = [*self._changed(0, layout.HEAP_USED_AT)]
        found += self._changed(layout.HEAP_USED_AT + layout.U64.size, layout.GROUPS_OFFSET)
        found += joined(self._surprises())
        used_groups = self._used(layout.GROUPS_OFFSET, layout.GROUP_BYTES, layout.GROUPS)
        groups_end = layout.GROUPS_OFFSET + used_groups * layout.GROUP_BYTES
        found += self._changed(layout.GROUPS_OFFSET, groups_end)
        used_channels = self._used(layout.CHANNELS_OFFSET, layout.CHANNEL.size, layout.CHANNELS)
        channels_end = layout.CHANNELS_OFFSET + used_channels * layout.CHANNEL.size
        found += self._changed(layout.CHANNELS_OFFSET, channels_end)
        found += self._checkpoints(used_groups, still)
        found += joined(self._ring(still, still_calls))
        found += self._heap()
        self._mark, self._anew = mark, False
        return found

    # -- parts ---------------------------------------------------------------------------------

    def _changed(self, start: int, end: int) -> Iterator[Piece]:
        if self._anew:
            self._told[start:end] = self._map[start:end]
            return iter([(start, self._map[start:end])] if end > start else [])
        return changed(self._map, self._told, start, end)

    def _tell(self, at: int, now: bytes, before: bytes | bytearray) -> Piece:
        return _tell(self._told, at, now, before)

    def _used(self, start: int, size: int, most: int) -> int:
        for index in range(most):
            if not layout.U32.unpack_from(self._map, start + index * size)[0]:
                return index
        return most

    def _surprises(self) -> Iterator[Piece]:
        count = int(layout.U64.unpack_from(self._map, layout.SURPRISES_AT)[0])
        for number in range(max(self._surprises_told, count - layout.SURPRISES), count):
            size = layout.SURPRISE.size
            at = layout.SURPRISES_OFFSET + number % layout.SURPRISES * size
            yield at, self._map[at : at + size]
        self._surprises_told = count

    def _checkpoints(self, groups: int, still: bool) -> Iterator[Piece]:
        size = layout.CHECKPOINT.size
        for group in range(groups):
            start = layout.CHECKPOINTS_OFFSET + group * layout.CHECKPOINTS * size
            end = start + layout.CHECKPOINTS * size
            now = self._map[start:end]
            if now == self._told[start:end]:
                continue
            counts = [layout.U64.unpack_from(now, row)[0] for row in range(0, len(now), size)]
            newest = max(counts)
            for row, count in enumerate(counts):
                coarse = count % (layout.CHECKPOINT_EVERY * COARSE) == 0
                if still or coarse or count > newest - 2 * layout.CHECKPOINT_EVERY:
                    at = start + row * size
                    new, old = self._map[at : at + size], self._told[at : at + size]
                    if new != old:
                        yield self._tell(at, new, old)

    def _ring(self, still: bool, still_calls: int) -> Iterator[Piece]:
        calls = self._calls()
        if not still:
            self._still_told = False
        wanted: Iterable[int]
        if self._filled:
            self._filled = False
            wanted = range(max(0, calls - layout.RING), calls)
        elif still and self._still_told:
            wanted = range(max(0, calls - FEW_CALLS), calls)  # they may have completed
        elif still:
            self._still_told = True
            wanted = self._last_calls(calls, still_calls)
        else:
            new = calls - self._calls_told
            count = FEW_CALLS if new <= FEW_CALLS else NEWEST_CALLS
            wanted = {*range(max(0, calls - count), calls), *self._waited_for(), *self._resting()}
        self._calls_told = calls
        for number in wanted:
            yield from self._slot(number)

    def _last_calls(self, calls: int, count: int) -> list[int]:
        """The last of the rank, and the last of each of its groups and channels."""
        wanted = set(range(max(0, calls - count), calls))
        for _, last in self._lasts_now():
            for _, (number, _) in zip(range(STILL_GROUP_CALLS), self._walk(last), strict=False):
                wanted.add(number)
        return sorted(wanted)

    def _waited_for(self) -> Iterator[int]:
        """The calls that threads are in, or wait for."""
        for index, word in enumerate(self._thread_calls()):
            at = layout.THREADS_OFFSET + index * layout.THREAD_BYTES
            _, activity, _, _, _, written, *_ = layout.THREAD.unpack_from(self._map, at)
            wait = None if activity else self._word_wait(index, word)
            call = written if activity else wait[0] if wait is not None else 0
            if call:
                yield int(call) - 1

    def _resting(self) -> Iterator[int]:
        """The last calls of groups and channels in which nothing was called since the last sample:
        what stands still there may be the fault, however busy the rank is elsewhere."""
        for place, last in self._lasts_now():
            if self._lasts.get(place) == last:
                yield last
            self._lasts[place] = last

    def _lasts_now(self) -> Iterator[tuple[int, int]]:
        """Yields for each group and channel that has had a call where it stands in the record, and
        that call's number."""
        tables = (
            (layout.GROUPS_OFFSET, layout.GROUP_BYTES, layout.GROUPS, layout.GROUP, 7),
            (layout.CHANNELS_OFFSET, layout.CHANNEL.size, layout.CHANNELS, layout.CHANNEL, 4),
        )
        for start, size, most, form, field in tables:
            for index in range(self._used(start, size, most)):
                at = start + index * size
                last = int(form.unpack_from(self._map, at)[field])
                if last:
                    yield at, last - 1

    def _slot(self, number: int) -> Iterator[Piece]:
        row = self._row(number)
        if row is None:
            return
        size = layout.SLOT.size
        at = layout.RING_OFFSET + number % layout.RING * size
        now, before = self._map[at : at + size], self._told[at : at + size]
        if now == before:
            return
        if layout.U64.unpack_from(before, 0)[0] == row[0]:
            yield self._tell(at, now, before)  # it has gone on
        else:
            self._told[at : at + size] = now  # as a whole: the next one may touch it
            yield at, now
        if row[6] == layout.VOLATILE_SIGNATURE:
            at = layout.volatile_at(number)
            yield at, self._map[at : at + layout.VOLATILE_BYTES]

    def _heap(self) -> Iterator[Piece]:
        """Yields the heap last, and how much of it there is with it: what came before may refer to
        it."""
        at = layout.HEAP_USED_AT
        used = min(int(layout.U64.unpack_from(self._map, at)[0]), layout.HEAP_BYTES)
        if used > self._heap_told:
            start = layout.HEAP_OFFSET + self._heap_told
            yield at, layout.U64.pack(used)
            yield start, self._map[start : layout.HEAP_OFFSET + used]
            self._heap_told = used


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Pieces that touch are one: of a ring that is told as a whole, one instead of thousands."""
    start, parts, end = 0, list[bytes](), -1
    for at, data in pieces:
        if at != end:
            if parts:
                yield start, b"".join(parts)
            start, parts = at, []
        parts.append(data)
        end = at + len(data)
    if parts:
        yield start, b"".join(parts)


class ReplicaSource:
    """A file of digests. Raises OSError and ValueError where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = open_regular(path)
        try:
            self.size = os.fstat(descriptor).st_size
            if not 0 < self.size <= MOST_REPLICA_BYTES:
                raise ValueError(f"{path} is of no size that digests have")
            self._map = mmap.mmap(descriptor, self.size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._told = bytearray(self.size)

    def anew(self) -> None:
        """Nothing counts as told."""
        self._told = bytearray(self.size)

    def sample(self, still_calls: int = 0) -> list[tuple[int, bytes]]:
        """Returns what has changed."""
        del still_calls  # there are none here
        return list(self._changed()) if self._still_whole() else []

    def _still_whole(self) -> bool:
        """Whether reading what is mapped would not end this process: the file is not cut short."""
        try:
            return os.stat(self.path).st_size >= self.size
        except OSError:
            return True  # it has no name any more: what is mapped stays

    def _changed(self) -> Iterator[Piece]:
        return changed(self._map, self._told, 0, self.size)


class BranchSource(ReplicaSource):
    """A file of branches. Of a rank that calls without pause they are told as soon as it stands
    still, for they are more than all else that is told of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._written = self._written_told = 0
        if self.size != FILE_BYTES:
            raise ValueError(f"{path} holds no branches")

    def sample(self, still_calls: int = 0) -> list[tuple[int, bytes]]:
        """Returns what has changed, where that is not too much yet."""
        if not self._still_whole():
            return []
        written = int(HEADER.unpack_from(self._map, 0)[4])
        still, self._written = written == self._written, written
        if not still and written - self._written_told > MOST_NEW:
            return []
        self._written_told = written
        return super().sample(still_calls)

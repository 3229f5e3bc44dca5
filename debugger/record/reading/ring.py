"""Opens a flight record, and reads its ring: the slots of its last calls, which is the latest."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import layout
from ..lost_pages import keep
from ..ops import OP_CODES, POINT_TO_POINT
from ..safe_files import open_regular, open_sized

MESSAGES = frozenset(OP_CODES[op] for op in POINT_TO_POINT)
"""The codes of the ops of which a channel keeps count, and no group."""
_FEW = 16
"""Groups, or channels: most ranks have no more. Whole tables of one record are 77 KB, and most of
that is empty."""
_TABLES = (
    (0, layout.GROUPS_OFFSET, layout.GROUP_BYTES, layout.GROUPS),
    (layout.CHANNELS_OFFSET, layout.CHANNELS_OFFSET, layout.CHANNEL.size, layout.CHANNELS),
)
"""From where they are read, where the slots begin, what each takes, how many there are: all but the
checkpoints, the ring and the heap."""

_U32_AT, _THREAD_CALLS_AT = layout.U32.unpack_from, layout.THREAD_CALLS.unpack_from


class FlightError(Exception):
    """This file cannot be read as a flight record; the sentence says why."""


class NoHeaderError(FlightError):
    """Nothing was written into it, yet."""


def mapped(path: Path) -> mmap.mmap:
    """The file, if it is a flight record that this version reads; raises FlightError."""
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise FlightError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(descriptor).st_size
        head = os.read(descriptor, 12)
        if head[:8] != layout.MAGIC:
            kind = FlightError if head.strip(b"\0") else NoHeaderError
            raise kind(f"{path}: is not a flight record of distdebug")
        version = int.from_bytes(head[8:12], "little")
        if version != layout.VERSION:
            reader = layout.READERS.get(version)
            elsewhere = f", which distdebug {reader} reads" if reader else ""
            raise FlightError(
                f"{path}: is a flight record of version {version}{elsewhere}; "
                f"this distdebug reads version {layout.VERSION}"
            )
        if size < layout.FILE_BYTES:
            raise FlightError(
                f"{path}: is truncated: {size} of {layout.FILE_BYTES} bytes are there"
            )
        found = mmap.mmap(descriptor, layout.FILE_BYTES, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    keep(found)
    return found


class OpenMaps:
    """The records of one reader that are mapped: at most `most` of those that it is told of.

    Each is a descriptor, and the pages that were read of it are memory of the process: of the
    16,384 ranks of 2,048 nodes both would be more than a process has.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: deque[RingReader] = deque()

    def opened(self, reader: RingReader) -> None:
        """This one was mapped just now: those that were longest ago rest."""
        self._open.append(reader)
        while len(self._open) > self._most:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._open.popleft().rest()


class Window:
    """A window on a record that is not kept mapped, by which it is read where a rank stands: of
    16,384 copies of other nodes' records each is looked at for a moment.

    To map a file, touch some pages of it and let go of it again takes three times as long as to
    read them. So the tables of one record at a time, as far as ranks mostly use them, are read into
    memory that is used again for the next; what else is needed of it, some slots and what is new in
    its heap, is read when it is asked for, and once.

    `memory` stands for the file that is open: where that was loaded, it has its bytes. Behind
    the first unused slot of a table it may have those of another file."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, layout.FILE_BYTES)
        self._view = memoryview(self.memory)
        self._descriptor = -1
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._tables = [
            (start, [self._view[start : slots + _FEW * size]], slots + _FEW * size, size, most)
            for start, slots, size, most in _TABLES
        ]
        self.thread_calls: tuple[int, ...] = ()
        """The words of the threads of the record that is open."""

    def open(self, path: Path) -> None:
        """Load the tables of this record. Raises OSError, also where it is cut short."""
        self._descriptor, size_bytes = open_sized(path)
        self._rows.clear()
        try:
            if size_bytes < layout.FILE_BYTES:
                raise OSError(f"the record ends at byte {size_bytes}")
            for start, memory, few, slot_bytes, most in self._tables:
                count = os.preadv(self._descriptor, memory, start)
                if count != few - start:
                    raise OSError(f"the record ends at byte {start + max(0, count)}")
                if _U32_AT(self.memory, few - slot_bytes)[0]:
                    self.load(few, (most - _FEW) * slot_bytes)
            self.thread_calls = _THREAD_CALLS_AT(self.memory, layout.THREADS_OFFSET)
        except OSError:
            self.close()
            raise

    def row(self, number: int) -> tuple[Any, ...]:
        """The slot of the ring in which the call with this number is, or was."""
        place = number % layout.RING
        found = self._rows.get(place)
        if found is None:
            at = layout.RING_OFFSET + place * layout.SLOT.size
            self.load(at, layout.SLOT.size)
            found = self._rows[place] = layout.SLOT.unpack_from(self.memory, at)
        return found

    def load(self, at: int, size: int) -> None:
        """Reads so many bytes more. Raises OSError where the file does not have them."""
        if size > 0:
            count = os.preadv(self._descriptor, [self._view[at : at + size]], at)
            if count != size:
                raise OSError(f"the record ends at byte {at + max(0, count)}")

    def close(self) -> None:
        """The next one may be opened."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RingReader:
    """The ring of a flight record, mapped. A slot is read as `layout.SLOT` says.

    What is mapped beyond a file's end cannot be read without being killed for it (SIGBUS): whoever
    keeps a reader calls `still_whole` before each look. Raises FlightError.
    """

    def __init__(self, path: Path, maps: OpenMaps | None = None) -> None:
        """`maps`: those of many records, of which not all can be mapped at a time."""
        self.path = path
        self.cut = False
        self._maps = maps
        self._mapped: mmap.mmap | None = None
        self._window: Window | None = None
        self._open()

    @property
    def _map(self) -> mmap.mmap:
        return self._mapped or self._open()

    def _open(self) -> mmap.mmap:
        found = self._mapped = mapped(self.path)
        if self._maps is not None:
            # Most of a copy is empty: reading ahead would fill memory with zeros, 128 KB each time.
            found.madvise(mmap.MADV_RANDOM)
            self._maps.opened(self)
        return found

    def look_through(self, window: Window) -> None:
        """Has the record read through the window, if it is not mapped just now, until `look_away`.
        No other thread may read it meanwhile."""
        if self._mapped is not None:
            return
        try:
            window.open(self.path)
        except OSError:
            return
        self._mapped, self._window = window.memory, window

    def look_away(self) -> None:
        """Ends the reading by a window: the record is read as ever."""
        if self._window is not None:
            self._window.close()
            self._window = None
            self._mapped = self._mapped if self.cut else None

    def rest(self) -> None:
        """Hold nothing of the file until it is read again, by its name."""
        if not self.cut:
            self._mapped = None  # whoever reads it just now in another thread still has it

    @property
    def change_mark(self) -> tuple[int, ...]:
        """A value that is equal as long as nothing of interest happened in the rank (the heartbeat
        apart)."""
        values = layout.DYNAMIC.unpack_from(self._map, layout.DYNAMIC_OFFSET)
        return (values[1], values[2], values[3], values[5], values[7] + sum(self._thread_calls()))

    @property
    def noted_bytes(self) -> int:
        """The bytes of the record that notes, and all else that is defined once, take."""
        return int(layout.U64.unpack_from(self._map, layout.HEAP_USED_AT)[0])

    def still_whole(self) -> bool:
        """Whether all that is mapped can be read. From the first time that somebody has cut the
        file short, all reads as absent."""
        if not self.cut and self._window is None:  # else that was looked at as it was opened
            with contextlib.suppress(OSError):  # it has no name any more: what is mapped stays
                self.cut = os.stat(self.path).st_size < layout.FILE_BYTES
            if self.cut:
                self._mapped = mmap.mmap(-1, layout.FILE_BYTES)
        return not self.cut

    def _thread_calls(self) -> tuple[int, ...]:
        if self._window is not None:
            return self._window.thread_calls
        return layout.THREAD_CALLS.unpack_from(self._map, layout.THREADS_OFFSET)

    def _calls(self, inside: Sequence[int] = ()) -> int:
        """Returns how many calls were issued. `inside`: the threads' words, where they were
        read."""
        counted = int(layout.U64.unpack_from(self._map, layout.CALLS_AT)[0])
        return max(counted, max(inside or self._thread_calls()) >> layout.PHASE_BITS)

    def _word_wait(self, index: int, word: int) -> tuple[int, int, int] | None:
        """Returns what the thread at this index waits for, by its word: the call's number + 1 (0:
        none), the line and since when. None where it has left that, or has gone on meanwhile: then
        another word, or its slot's activity, says what it does."""
        phase = word & (1 << layout.PHASE_BITS) - 1
        if phase % 2:
            return None
        if phase:
            at = layout.THREADS_OFFSET + index * layout.THREAD_BYTES
            wait: tuple[int, int, int] = layout.WAIT.unpack_from(self._map, at + layout.WAIT_AT)
            now = layout.U64.unpack_from(self._map, at + layout.THREAD_CALL_AT)[0]
            return wait if now == word else None
        row = self._row((word >> layout.PHASE_BITS) - 1)
        return None if row is None or row[15] or row[16] else (row[0], row[7], row[14])

    def _row(self, number: int) -> tuple[Any, ...] | None:
        """The slot of this call in the ring; None when it was overwritten or is torn."""
        if number < 0:
            return None
        if self._window is not None:
            row = self._window.row(number)
        else:
            at = layout.RING_OFFSET + number % layout.RING * layout.SLOT.size
            row = layout.SLOT.unpack_from(self._map, at)
        return row if row[0] == row[17] == number + 1 else None

    def _newest(self, calls: int) -> tuple[Any, ...] | None:
        """The slot of the latest of so many calls, which has the counts of its group or channel;
        None if the counts are elsewhere."""
        row = self._row(calls - 1)
        if row is None or row[5] & layout.REFUSED_FLAG:
            return None
        return row

    def _walk(self, last: int | None) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """The calls of one group or channel from this one backwards, as (number, slot row)."""
        number = last
        while number is not None and number >= 0:
            row = self._row(number)
            if row is None:
                return
            yield number, row
            distance = (number + 1 - row[8]) & 0xFFFFFFFF
            # A call that names itself as the one before it, or one that the ring has lost, ends
            # the walk; so no ring leads round in circles.
            if not row[8] or not 0 < distance < layout.RING:
                return
            number -= distance

"""A window on a record that is not kept mapped, by which it is read where a rank stands: of 16,384
copies of other nodes' records each is looked at for a moment.

To map a file, touch some pages of it and let go of it again takes three times as long as to read
them. So the tables of one record at a time, as far as ranks mostly use them, are read into memory
that is used again for the next; what else is needed of it, some slots and what is new in its heap,
is read when it is asked for, and once.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from .. import layout
from ..safe_files.bounds import open_sized

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


class Window:
    """`memory` stands for the file that is open: where that was loaded, it has its bytes. Behind
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

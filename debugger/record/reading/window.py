"""Where a rank stands, read from a record that is not kept mapped: of 16,384 copies of other nodes'
records each is looked at for a moment.

To map a file, touch some pages of it and let go of it again takes three times as long as to read
them. So the tables of one record at a time are read into memory that is used again for the next;
what else is needed of it, some slots and what is new in its heap, is read when it is asked for.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from .. import layout
from ..files.bounds import open_regular

_TABLES = (
    (0, layout.CHECKPOINTS_OFFSET),
    (layout.CHANNELS_OFFSET, layout.RING_OFFSET),
)
"""From where to where: all but the checkpoints, the ring and the heap."""


class Window:
    """`memory` stands for the file that is open: where that was loaded, it has its bytes."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, layout.FILE_BYTES)
        self._view = memoryview(self.memory)
        self._descriptor = -1

    def open(self, path: Path) -> None:
        """Load the tables of this record. Raises OSError, also where it is cut short."""
        self._descriptor = open_regular(path)
        try:
            for start, end in _TABLES:
                self.load(start, end - start)
        except OSError:
            self.close()
            raise

    def load(self, at: int, size: int) -> None:
        """So many bytes more. Raises OSError where the file does not have them."""
        if size > 0:
            count = os.preadv(self._descriptor, [self._view[at : at + size]], at)
            if count != size:
                raise OSError(f"the record ends at byte {at + max(0, count)}")

    def close(self) -> None:
        """The next one may be opened."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

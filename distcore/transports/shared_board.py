"""Memory of a group within one host: each rank writes its own pages, and all read all of them.

What a message would carry n-1 times is copied once, and what is only reduced is not copied out at
all. That a page may be read, or written again, is said by messages: `algorithms.board` has the
rules. The memory is anonymous (memfd), as that of `shared_memory`.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

PAGES = 3
PAGE_BYTES = 4 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024
"""The bytes of a page that are filled with what several ranks read: small enough for the blocks of
8 ranks to stay in the processor's last cache."""
HEAD_BYTES = 64 * 1024
"""The bytes of each page, behind these, for what ranks say of their data."""
BOARD_BYTES = PAGES * (PAGE_BYTES + HEAD_BYTES)


class SharedBoard:
    """The pages of all ranks. The ranks take turns alike, since all are in the same call."""

    def __init__(self, memories: Sequence[mmap.mmap | bytearray]) -> None:
        """`memories`: of every rank, in their order, `BOARD_BYTES` each."""
        self._memories = memories
        self._views = [memoryview(memory) for memory in memories]
        self._turns = [
            [view[start : start + PAGE_BYTES + HEAD_BYTES] for view in self._views]
            for start in range(0, BOARD_BYTES, PAGE_BYTES + HEAD_BYTES)
        ]
        self._turn = 0

    def turn(self) -> list[memoryview]:
        """The next page of every rank."""
        pages = self._turns[self._turn]
        self._turn = (self._turn + 1) % PAGES
        return pages

    def close(self) -> None:
        """Releases the memory, which no call uses any more."""
        for view in (*(page for pages in self._turns for page in pages), *self._views):
            view.release()
        for memory in self._memories:
            if isinstance(memory, mmap.mmap):
                unmap(memory)


def unmap(memory: mmap.mmap) -> None:
    """Close it, now or when nobody looks at it any more."""
    try:
        memory.close()
    except BufferError:
        pass  # the traceback of an error holds a piece of it: it goes with that

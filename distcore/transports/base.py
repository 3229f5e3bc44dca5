"""The network as an algorithm sees it: rank, size, `exchange`, and a host's shared memory."""

from __future__ import annotations

import mmap
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PAGES = 3
BLOCK_BYTES = 1024 * 1024
"""Of a page: small enough for the blocks of 8 ranks to stay in the processor's last cache."""
HEAD_BYTES = 64 * 1024
"""The bytes of each page, behind these, for what ranks say of their data."""
BOARD_BYTES = PAGES * (BLOCK_BYTES + HEAD_BYTES)


class SharedBoard:
    """Memory of a group within one host: each rank writes its own pages, and all read all of them.

    What a message would carry n-1 times is copied once, and what is only reduced is not copied out
    at all. That a page may be read, or written again, is said by messages: `algorithms.board` has
    the rules. The memory is anonymous (memfd), as that of `shared_memory`. The ranks take turns
    alike, since all are in the same call.
    """

    def __init__(self, memories: Sequence[mmap.mmap | bytearray]) -> None:
        """`memories`: of every rank, in their order, `BOARD_BYTES` each."""
        self._memories = memories
        self._views = [memoryview(memory) for memory in memories]
        self._turns = [
            [view[start : start + BLOCK_BYTES + HEAD_BYTES] for view in self._views]
            for start in range(0, BOARD_BYTES, BLOCK_BYTES + HEAD_BYTES)
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


SEGMENT_BYTES = 256 * 1024
"""A message longer than this arrives in pieces of this size (the last may be shorter). It is a
multiple of every element's size, and small enough for a piece to be reduced out of the cache."""

Connect = Callable[[int, float], socket.socket]
"""(peer, deadline by time.monotonic()) -> an authenticated connection to that group rank."""

Consume = Callable[[memoryview, int], None]
"""(piece, offset in bytes): takes one piece of a message, in order; the piece is valid only until
it returns."""


@dataclass(slots=True)
class Send:
    """Bytes for a peer (a rank of the group). They must not change until `exchange` returns.

    `at_rest`: the call only reads them, so a peer of this host may read them where they lie, in
    place of two copies. What it writes as well costs more that way (the peer's processor has to
    give each piece back), and so does what only one of two idle processors copies.
    """

    peer: int
    data: memoryview
    at_rest: bool = False


@dataclass(slots=True)
class Receive:
    """A peer's next message of this call: exactly `len(into)` bytes.

    They are written to `into`, or, with `consume`, handed to it piece by piece; then `into` only
    tells the length (an algorithm passes what it reduces into).
    """

    peer: int
    into: memoryview
    consume: Consume | None = None


class Transport(ABC):
    """The network of one group, while one call of it runs. One thread uses it at a time."""

    rank: int
    size: int
    board: SharedBoard | None = None
    """The memory that all ranks of the group see, where they do."""

    @abstractmethod
    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Send and receive all of these messages, at most one to and one from each peer, in any
        order and at the same time; return when all sends were taken and all receives are complete.

        This is one step of the call. Raises what `distcore.errors` describes: a lost peer, a
        mismatch, the call's deadline, an abort; the group is unusable afterwards.
        """

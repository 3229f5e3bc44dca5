"""The network as an algorithm sees it: rank, size, and `exchange`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .shared_board import SharedBoard

SEGMENT_BYTES = 256 * 1024
"""A message longer than this arrives in pieces of this size (the last may be shorter). It is a
multiple of every element's size, and small enough for a piece to be reduced out of the cache."""

Consume = Callable[[memoryview, int], None]
"""(piece, offset in bytes): takes one piece of a message, in order; the piece is valid only until
it returns."""


@dataclass(slots=True)
class Send:
    """Bytes for a peer (a rank of the group). They must not change until `exchange` returns."""

    peer: int
    data: memoryview


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

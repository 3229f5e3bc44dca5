"""The exchange of small tensors' values in a planned group: who has them, and which are real.

A plan moves no data. What it cannot do without (flags, sizes, objects, a few numbers) is exchanged
between the planned ranks by whoever runs them; everything else is a value that stands in for the
one that a real run would have, and is marked as such. Large tensors of integers that hold little
(shapes in a long row of zeros, masks, positions) steer programs as small ones do, and travel
packed: a few KiB say all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Exchange(Protocol):
    """The exchange of the values of this rank's calls. Ranks are group ranks.

    A `slot` names one collective, and a `channel` one sequence of messages, in the same words on
    all ranks that take part. None in the place of bytes: a value of which nothing travels.
    """

    @property
    def barriers_wait(self) -> bool:
        """Whether a rank comes out of a barrier when all have come to it. It has no value, but
        files and the like may be written before one and read behind it."""

    def world(self, store: Any) -> str:
        """Returns what tells the groups that meet in this store from those that meet in others."""

    def absent(self, ranks: Sequence[int]) -> Sequence[int]:
        """Returns the places of a group of these (global) ranks whose ranks are not planned."""

    def lack(self, rank: int) -> None:
        """Wait for a value that steers the program and that this (global) rank has, who is not
        planned: never returns."""

    def is_small(self, tensor: Tensor) -> bool:
        """Whether tensors of this dtype and size are exchanged; the same on all ranks."""

    def carried(self, tensor: Tensor, data: bytes) -> bytes | None:
        """Returns what travels of the elements of such a tensor: they, or `packed`; None
        where that is too much."""

    def is_real(self, tensor: Tensor) -> bool:
        """Whether the elements are those that a real run would have."""

    def mark(self, tensors: Sequence[Tensor], real: bool, alike: str = "") -> None:
        """From now on these hold real values, or ones that only stand in for them. `alike`: what
        names these on all ranks that have the same in their place."""

    def offer(self, slot: str, text: str, rank: int, parts: Sequence[bytes | None]) -> None:
        """This rank's part in a collective: one value for all, or one for each rank of the group.
        `text` is the call's, which must be the same on all ranks."""

    def agreed(self, slot: str, text: str, value: bytes) -> bytes:
        """Returns what stands in for a result that is the same on all ranks, and not known: the
        first value given here. Waits for no rank."""

    def collect(
        self, slot: str, text: str, rank: int, sources: Sequence[int]
    ) -> list[bytes | None]:
        """Returns what these ranks have for this one. Waits for them."""

    def send(self, channel: str, source: int, target: int, tag: int, value: bytes | None) -> None:
        """The next message from one rank of the group to another."""

    def expect(self, channel: str, source: int, target: int, tag: int) -> int:
        """This rank will take the next message of that kind: its number."""

    def take(self, channel: str, source: int, target: int, tag: int, number: int) -> bytes | None:
        """Returns that message. Waits for it."""

    def take_any(self, channel: str, target: int, tag: int) -> tuple[int, bytes | None]:
        """The next message from whoever sends one, and who that is. Waits for it."""


_LEVEL = 1
_SAMPLE_BYTES = 1 << 16
RATIO = 256
"""Nothing is thought to become smaller than by this."""


def packed(data: bytes, most_bytes: int) -> bytes | None:
    """These in fewer bytes; None where that makes more than `most_bytes`."""
    if len(data) > RATIO * most_bytes:
        return None
    # Data that is no such thing is known by a piece of it, which costs a millisecond.
    middle = max(0, (len(data) - _SAMPLE_BYTES) // 2)
    sample = data[middle : middle + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _LEVEL)) * len(data) > 4 * most_bytes * len(sample):
        return None
    found = zlib.compress(data, _LEVEL)
    return found if len(found) <= most_bytes else None


def unpacked(value: bytes | None, size_bytes: int) -> bytes | None:
    """Returns `size_bytes` bytes, as they are or from `packed`; None where it is something else."""
    if value is None or len(value) == size_bytes:
        return value
    if len(value) > size_bytes:
        return None
    try:
        found = zlib.decompressobj().decompress(value, size_bytes + 1)
    except zlib.error:
        return None
    return found if len(found) == size_bytes else None

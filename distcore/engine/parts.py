"""The parts of one tensor, that still knows which: some transports work on the whole at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor


class Parts(Sequence[Tensor]):
    """The parts of one contiguous tensor: flat, in its order, without gaps. It is cut when a part
    is accessed."""

    __slots__ = ("_counts", "_cut", "_size", "each", "whole")

    def __init__(self, whole: Tensor, counts: Sequence[int]) -> None:
        """`counts`: the elements of each part."""
        self.whole = whole
        self.each = -1
        self._size = len(counts)
        self._counts: Sequence[int] | None = counts
        self._cut: Sequence[Tensor] | None = None

    @classmethod
    def even(cls, whole: Tensor, size: int) -> Parts:
        """Returns `size` parts of one length, which is `each`; where the sizes were given, that is
        -1."""
        made = cls(whole, ())
        made.each = whole.numel() // size
        made._size = size
        made._counts = None
        return made

    def __repr__(self) -> str:
        return f"<Parts {list(self.counts)} of a tensor of shape {tuple(self.whole.shape)}>"

    @property
    def counts(self) -> Sequence[int]:
        """The elements of each part."""
        if self._counts is None:
            self._counts = [self.each] * self._size
        return self._counts

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parts())

    def __getitem__(self, index: Any) -> Any:
        return self._parts()[index]

    def _parts(self) -> Sequence[Tensor]:
        if self._cut is None:
            if self.each < 0:
                flat = self.whole.view(-1)
                self._cut = flat.split(self.counts)  # type: ignore[no-untyped-call]
            else:
                self._cut = self.whole.view(self._size, self.each).unbind(0)
        return self._cut


def whole_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which these are the parts. By the call, not by the addresses, so all ranks get
    the same answer: None for a list that the program gave."""
    return tensors.whole if isinstance(tensors, Parts) else None

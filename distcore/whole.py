"""The parts of one tensor, that still knows which: some transports work on the whole at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor


class Parts(Sequence[Tensor]):
    """What one contiguous tensor is cut into: flat, in its order, without gaps. `counts` are the
    parts' elements. It is cut when somebody looks at a part."""

    __slots__ = ("_cut", "counts", "whole")

    def __init__(self, whole: Tensor, counts: Sequence[int]) -> None:
        self.whole = whole
        self.counts = counts
        self._cut: Sequence[Tensor] | None = None

    @classmethod
    def even(cls, whole: Tensor, size: int) -> Parts:
        """As many parts of one size."""
        return cls(whole, [whole.numel() // size] * size)

    def __repr__(self) -> str:
        return f"<Parts {list(self.counts)} of a tensor of shape {tuple(self.whole.shape)}>"

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parts())

    def __getitem__(self, index: Any) -> Any:
        return self._parts()[index]

    def _parts(self) -> Sequence[Tensor]:
        if self._cut is None:
            self._cut = self.whole.view(-1).split(self.counts)  # type: ignore[no-untyped-call]
        return self._cut


def whole_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which these are the parts. By the call, not by the addresses, so all ranks get
    the same answer: None for a list that the program gave."""
    return tensors.whole if isinstance(tensors, Parts) else None

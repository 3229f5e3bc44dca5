"""The parts of one tensor, that still knows which: some transports work on the whole at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor


class Parts(list[Tensor]):
    """What one contiguous tensor is cut into, in its order and without gaps."""

    def __init__(self, whole: Tensor, parts: Iterable[Tensor]) -> None:
        super().__init__(parts)
        self.whole = whole


def whole_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which these are the parts. By the call, not by the addresses, so all ranks get
    the same answer: None for a list that the program gave."""
    return tensors.whole if isinstance(tensors, Parts) else None

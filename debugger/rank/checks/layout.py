"""The addresses of the elements of a tensor, a storage or an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Range = tuple[int, int]
"""Addresses in memory: of the first byte, and behind the last one."""
_MOST_ELEMENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """`start` is the address of the element whose indices are all 0; strides are in bytes."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @property
    def range(self) -> Range:
        """From the first byte to behind the last one; there may be gaps. (0, 0): no element."""
        if 0 in self.shape:
            return 0, 0
        steps = [(size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)]
        first = self.start + sum(step for step in steps if step < 0)
        return first, self.start + sum(step for step in steps if step > 0) + self.item_bytes

    def lies_in(self, memory: Range) -> bool:
        """Whether all of it does, so that to look at any element is to look there."""
        first, end = self.range
        return first < end and memory[0] <= first and end <= memory[1]

    def touches(self, memory: Range) -> bool:
        """Whether an element lies there."""
        if not overlap(self.range, memory):
            return False
        if self._has_no_gaps():
            return True
        if torch.Size(self.shape).numel() > _MOST_ELEMENTS:
            return False
        addresses = torch.full((), self.start, dtype=torch.int64, device="cpu")
        for size, step in zip(self.shape, self.strides, strict=True):
            addresses = addresses.unsqueeze(-1) + torch.arange(size, device="cpu") * step
        ends = addresses + self.item_bytes
        return bool(((addresses < memory[1]) & (ends > memory[0])).any())

    def _has_no_gaps(self) -> bool:
        sizes = zip(self.strides, self.shape, strict=True)
        expected = self.item_bytes
        for step, size in sorted((abs(step), size) for step, size in sizes if size > 1):
            if step != expected:
                return False
            expected *= size
        return True


def overlap(one: Range, other: Range) -> bool:
    """Whether a byte lies in both."""
    return one[0] < other[1] and other[0] < one[1]


def of_tensor(tensor: Tensor) -> MemoryLayout | None:
    """None where its memory is not the processor's, or not known."""
    if (
        type(tensor) not in (Tensor, Parameter)
        or not tensor.is_cpu
        or tensor.layout != torch.strided
        or tensor.numel() == 0
    ):
        return None
    size = tensor.element_size()
    steps = tuple(step * size for step in tensor.stride())
    return MemoryLayout(tensor.data_ptr(), tuple(tensor.shape), steps, size)


def of_storage(storage: torch.UntypedStorage) -> MemoryLayout | None:
    """Returns the layout of all of a storage."""
    size = storage.nbytes()
    if storage.device.type != "cpu" or not size:
        return None
    return MemoryLayout(storage.data_ptr(), (size,), (1,), 1)


def of_array(array: Any) -> MemoryLayout:
    """Returns the layout of an array of numpy's."""
    start = int(array.__array_interface__["data"][0])
    return MemoryLayout(start, tuple(array.shape), tuple(array.strides), int(array.itemsize))

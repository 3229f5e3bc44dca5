"""The memory of tensors in the terms of MPI's calls: pieces that it can count, and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..engine.parts import Parts

MOST_BYTES = 2**31 - 4096
"""In one call of MPI's; a multiple of every element's size."""


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, flat, in parts that MPI can count; none where it has no elements."""
    if not tensor.numel():
        return
    if tensor.nbytes <= MOST_BYTES:
        yield tensor
        return
    flat = tensor.view(-1)
    step = MOST_BYTES // 2 // tensor.element_size()
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step]


def empty_for(parts: Sequence[Tensor]) -> Tensor:
    """Room for all of them, one after the other."""
    return torch.empty(
        sum(part.numel() for part in parts), dtype=parts[0].dtype, device=parts[0].device
    )


def unpack(packed: Tensor, into: Sequence[Tensor]) -> None:
    """Copy it, part by part, to where each belongs."""
    settle(packed)
    for part, one in zip(torch.split(packed, [one.numel() for one in into]), into, strict=True):
        one.view(-1).copy_(part)


def starts(counts: Sequence[int]) -> list[int]:
    """Returns where each part begins."""
    return [0, *accumulate(counts[:-1])]


def counts_and_starts(parts: Parts) -> tuple[list[int], list[int]]:
    """Returns counts and starts of the parts, in bytes."""
    item_bytes = parts.whole.element_size()
    counts = [one * item_bytes for one in parts.counts]
    return counts, starts(counts)


def touch(one: Tensor, other: Tensor) -> bool:
    """Whether they share memory."""
    begin, end = one.data_ptr(), one.data_ptr() + one.nbytes
    return begin < other.data_ptr() + other.nbytes and other.data_ptr() < end


def settle_all(*lists: Sequence[Tensor]) -> None:
    """`settle` for each."""
    for tensors in lists:
        for tensor in tensors:
            settle(tensor)


def settle(tensor: Tensor) -> None:
    """MPI does not know of streams: what this thread asked of a GPU before must be done."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()

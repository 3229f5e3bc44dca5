"""Tensors and reductions in the terms of MPI's calls: countable pieces, operation, datatype.

An operation is MPI's own where its arithmetic is ours: sums and products of integers (on their
unsigned types, in C the only ones that wrap around by rule) and of float32 and float64, minimum,
maximum and bits of integers; complex numbers add as pairs, a bool is a byte of 0 or 1. The rest are
operations of our own, on torch's kernels: everything on float16 and bfloat16, which MPI does not
know, and MIN and MAX of floats, where MPI's forget NaN. AVG and PREMUL_SUM are sums; what they do
besides is done before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..base.call_text import dtype_name
from ..base.reduction import SIGNED, Reduction
from ..engine.staging import Parts

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


_INTEGERS = (*SIGNED, torch.uint8)
_FLOATS = {torch.float32: "FLOAT", torch.float64: "DOUBLE"}
_HALVES = (torch.float16, torch.bfloat16)

_MODULAR = {torch.add: "SUM", torch.mul: "PROD", torch.bitwise_and: "BAND",
            torch.bitwise_or: "BOR", torch.bitwise_xor: "BXOR"}  # fmt: skip
_ORDERED = {torch.minimum: "MIN", torch.maximum: "MAX"}

_known: dict[tuple[Any, torch.dtype], tuple[Any, Any]] = {}


def operation(mpi: Any, reduction: Reduction) -> tuple[Any, Any]:
    """(MPI.Op, MPI.Datatype of `reduction.computed_as`)."""
    key = (reduction.function, reduction.computed_as)
    found = _known.get(key)
    if found is None:
        found = _known[key] = _native(mpi, *key) or _ours(mpi, *key)
    return found


def _native(mpi: Any, function: Any, dtype: torch.dtype) -> tuple[Any, Any] | None:
    if function in _MODULAR and dtype in _INTEGERS:
        return getattr(mpi, _MODULAR[function]), getattr(mpi, f"UINT{8 * dtype.itemsize}_T")
    if function in _ORDERED and dtype in _INTEGERS:
        return getattr(mpi, _ORDERED[function]), getattr(mpi, f"{dtype_name(dtype).upper()}_T")
    if function in (torch.add, torch.mul) and dtype in _FLOATS:
        return getattr(mpi, _MODULAR[function]), getattr(mpi, _FLOATS[dtype])
    return None


def _ours(mpi: Any, function: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    datatype = mpi.UINT16_T if dtype in _HALVES else getattr(mpi, _FLOATS[dtype])
    reduction = Reduction(function.__name__, dtype, dtype.itemsize, dtype, function)

    def combine(earlier: Any, into: Any, _datatype: Any) -> None:
        out = memoryview(into).cast("B")
        reduction.merge(memoryview(earlier).cast("B"), out, out)

    # Sums and products are the same bits in either order. Of 0.0 and -0.0 the smaller is whichever
    # comes first: there MPI must keep to one order on all ranks.
    return mpi.Op.Create(combine, function not in _ORDERED), datatype

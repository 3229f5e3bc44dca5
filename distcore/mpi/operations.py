"""The MPI operation and datatype for each of our reductions.

MPI's own where its arithmetic is ours: sums and products of integers (on their unsigned types, in C
the only ones that wrap around by rule) and of float32 and float64, minimum, maximum and bits of
integers; complex numbers add as pairs, a bool is a byte of 0 or 1. The rest are operations of our
own, on torch's kernels: everything on float16 and bfloat16, which MPI does not know, and MIN and
MAX of floats, where MPI's forget NaN.

AVG and PREMUL_SUM are sums; what they do besides is done before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base.call_text import dtype_name
from ..base.reduction import SIGNED, Reduction

_INTEGERS = (*SIGNED, torch.uint8)
_FLOATS = {torch.float32: "FLOAT", torch.float64: "DOUBLE"}
_HALVES = (torch.float16, torch.bfloat16)

_MODULAR = {torch.add: "SUM", torch.mul: "PROD", torch.bitwise_and: "BAND",
            torch.bitwise_or: "BOR", torch.bitwise_xor: "BXOR"}  # fmt: skip
_ORDERED = {torch.minimum: "MIN", torch.maximum: "MAX"}

_own: dict[tuple[Any, torch.dtype], Any] = {}
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
    made = _own.get((function, dtype))
    if made is None:
        # Sums and products are the same bits in either order. Of 0.0 and -0.0 the smaller is
        # whichever comes first: there MPI must keep to one order on all ranks.
        commutes = function not in _ORDERED
        made = _own[function, dtype] = mpi.Op.Create(_on_bytes(function, dtype), commutes)
    return made, datatype


def _on_bytes(function: Any, dtype: torch.dtype) -> Callable[[Any, Any, Any], None]:
    reduction = Reduction(function.__name__, dtype, dtype.itemsize, dtype, function)

    def combine(earlier: Any, into: Any, _datatype: Any) -> None:
        out = memoryview(into).cast("B")
        reduction.merge(memoryview(earlier).cast("B"), out, out)

    return combine

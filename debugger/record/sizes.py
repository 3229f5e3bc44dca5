"""The one table of dtypes, and the bytes that the tensors of a call take."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from .signature import Signature, Tensor


class Dtype(NamedTuple):
    """`scalar` is torch's name of it in C++, which dumps, traces and errors show."""

    item_bytes: int
    scalar: str


DTYPES: dict[str, Dtype] = {
    "float64": Dtype(8, "Double"),
    "float32": Dtype(4, "Float"),
    "float16": Dtype(2, "Half"),
    "bfloat16": Dtype(2, "BFloat16"),
    "complex128": Dtype(16, "ComplexDouble"),
    "complex64": Dtype(8, "ComplexFloat"),
    "int64": Dtype(8, "Long"),
    "int32": Dtype(4, "Int"),
    "int16": Dtype(2, "Short"),
    "int8": Dtype(1, "Char"),
    "uint8": Dtype(1, "Byte"),
    "bool": Dtype(1, "Bool"),
}
"""Those that all backends know."""
_NAMES = {row.scalar: name for name, row in DTYPES.items()}
_BYTES = {
    word: row.item_bytes for name, row in DTYPES.items() for word in (row.scalar.lower(), name)
}
_BITS = re.compile(r"\d+")


def scalar_of(dtype: str) -> str:
    """Returns torch's name in C++; of a dtype that the table does not have, its name in Python."""
    row = DTYPES.get(dtype)
    return dtype if row is None else row.scalar


def name_of(scalar: str) -> str:
    """Returns the inverse of `scalar_of`; other libraries dump names in small letters."""
    return _NAMES.get(scalar, scalar.lower())


@functools.lru_cache(maxsize=256)
def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element: float32 has 4, float8_e4m3fn 1; 0 for a name that gives no
    size."""
    known = _BYTES.get(dtype)
    if known is not None:
        return known
    found = _BITS.search(dtype)
    return 0 if found is None else max(int(found[0][:4]) // 8, 1)


def tensors_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of all tensors together."""
    return sum(item_bytes(dtype) * prod(shape) for dtype, shape in tensors)


def larger_side_bytes(signature: Signature) -> int:
    """The larger of what a rank contributes to the call and what it receives: what has to move
    before the call can be over for it."""
    return max(tensors_bytes(signature.tensors), tensors_bytes(signature.others))


def call_bytes(signature: Signature) -> int:
    """Returns the bytes that a rank contributes to the call or, where it contributes nothing,
    receives."""
    return tensors_bytes(signature.tensors)

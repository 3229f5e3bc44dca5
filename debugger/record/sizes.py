"""How many bytes the tensors of a call take."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from math import prod

from .signature import Signature, Tensor

_BYTES = {"bool": 1, "half": 2, "float": 4, "double": 8, "short": 2, "int": 4, "long": 8}
"""Names without a number of bits."""
_BITS = re.compile(r"\d+")


@functools.lru_cache(maxsize=256)
def item_bytes(dtype: str) -> int:
    """Of one element: float32 has 4, float8_e4m3fn 1; 0 for a name that gives no size."""
    known = _BYTES.get(dtype)
    if known is not None:
        return known
    found = _BITS.search(dtype)
    return 0 if found is None else max(int(found[0][:4]) // 8, 1)


def tensors_bytes(tensors: Iterable[Tensor]) -> int:
    """Of all of them."""
    return sum(item_bytes(dtype) * prod(shape) for dtype, shape in tensors)


def larger_side_bytes(signature: Signature) -> int:
    """The larger of what a rank contributes to the call and what it receives: what has to move
    before the call can be over for it."""
    return max(tensors_bytes(signature.tensors), tensors_bytes(signature.others))


def call_bytes(signature: Signature) -> int:
    """What a rank contributes to the call or, where it contributes nothing, what it receives."""
    return tensors_bytes(signature.tensors)

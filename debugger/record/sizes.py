"""The bytes that the tensors of a call take."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from .dtypes import item_bytes
from .signature import Signature, Tensor


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

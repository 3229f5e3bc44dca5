"""The bytes of a tensor, and tensors over bytes, without a copy."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

_COPY_BYTES = 1024 * 1024
_MEMORY = memoryview((ctypes.c_ubyte * 2**62).from_address(1)).cast("B")
"""All that this process may have mapped, from address 1 on: a slice of it takes half as long as an
array and a view made for each tensor."""


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor of any dtype and shape: writable, format 'B'.

    It does not keep the tensor alive: the caller does, as long as the view is used. A tensor with
    a pending conjugation or negation (`is_conj()`, `is_neg()`) shows the bytes before it.
    """
    length_bytes = tensor.nbytes
    if not length_bytes:
        return memoryview(bytearray())
    end = tensor.data_ptr() - 1 + length_bytes
    return _MEMORY[end - length_bytes : end]


def tensor_over(view: memoryview, dtype: torch.dtype) -> Tensor:
    """A flat tensor of `dtype` over the view's memory, which it keeps alive.

    Raises ValueError when the view is not a whole number of elements. torch has no read-only
    tensors and warns about them, so a read-only view is copied.
    """
    if view.readonly:
        view = memoryview(bytearray(view))
    if not len(view):
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(view, dtype=dtype)


def copy_bytes(into: memoryview, data: memoryview) -> None:
    """Copy between views of equal length.

    By pieces, so that other threads get the interpreter in between; and not by torch, whose
    threads would compete for the processors with the ranks of this host.
    """
    if into is data:
        return
    length_bytes = len(data)
    if length_bytes <= _COPY_BYTES:
        into[:] = data
        return
    for start in range(0, length_bytes, _COPY_BYTES):
        into[start : start + _COPY_BYTES] = data[start : start + _COPY_BYTES]

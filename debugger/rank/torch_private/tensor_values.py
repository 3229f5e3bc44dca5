"""Reads what a tensor is, and a few of its numbers, past every mode that a program may have put in
front of torch's functions."""

from __future__ import annotations

from typing import Any

import torch

from .probe import Private, WatchedPart

TENSOR_VALUES = WatchedPart(
    "tensor_values",
    "the values of tensors in the branches that ranks took are not told",
    Private("torch._C", "DisableTorchFunction"),
    Private("torch._C", "_len_torch_dispatch_stack"),
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FEW = 4


def summary_of_tensor(value: Any) -> str:
    """`float32[2] 0.5, 1.5`; without numbers where they are many or on a device, which would have
    to be waited for. "" for what is no tensor of torch's own classes."""
    if type(value) not in _PLAIN or not TENSOR_VALUES.works:
        return ""
    with torch._C.DisableTorchFunction():
        text = f"{str(value.dtype)[6:]}{list(value.shape)}"
        if not value.is_cpu or value.layout is not torch.strided or value.numel() > _FEW:
            return text
        if torch._C._len_torch_dispatch_stack():
            return text
        try:
            numbers = value.detach().flatten().tolist()
        except RuntimeError:  # within a transformation of functorch's
            return text
    shown = (f"{one:.6g}" if type(one) is float else str(one) for one in numbers)
    return f"{text} {', '.join(shown)}"

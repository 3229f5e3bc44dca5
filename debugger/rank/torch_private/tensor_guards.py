"""torch's guard of compiled code: whether tensors are like those it was made of, asked at once.

It compares classes, dtypes, devices, layouts and sizes of several tensors in half the time that it
takes to read them one by one. It says no to more than differs in these (whether a gradient is
wanted, say), and to a tensor that is given twice: a no tells nothing, a yes that all is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .probe import Private, WatchedPart
from .self_test import tried

TENSOR_GUARDS = WatchedPart(
    "tensor_guards",
    "each call costs some tenths of a microsecond more",
    Private("torch._C", "_dynamo.guards.TensorGuards"),
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ASKED = ("dtype", "is_cpu", "layout", "shape")


def tensor_guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """A function of as many tensors: whether they have the classes, dtypes, devices, layouts and
    sizes that these have now. None where nobody can tell that in this way."""
    if not TENSOR_GUARDS.works or any(name in vars(torch.Tensor) for name in _ASKED):
        return None  # in a plan a tensor answers for another device than it is on
    if any(type(tensor) not in _PLAIN for tensor in tensors):
        return None
    try:
        return _made(tensors)
    except Exception:
        return None  # a nested tensor has no sizes


def _made(tensors: Sequence[Any]) -> Callable[..., bool]:
    guards: Any = torch._C._dynamo.guards
    found: Callable[..., bool] = guards.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[[None] * tensor.dim() for tensor in tensors],  # None: any
    ).check
    return found


def try_tensor_guards() -> None:
    """Leave them alone, if they tell something else than is known. Not at a program's first call,
    whose modes would see it."""
    if TENSOR_GUARDS.works:
        unlike = tried(_trial)
        if unlike:
            TENSOR_GUARDS.switch_off(f"with torch {torch.__version__} {unlike}")


def _trial() -> str:
    """Tells what is not as known of these guards; "" where all is."""
    one = torch.zeros(2, 3, device="cpu", dtype=torch.float32)
    others = {
        "shape": torch.zeros(3, 2, device="cpu", dtype=torch.float32),
        "dimension": torch.zeros(2, 3, 1, device="cpu", dtype=torch.float32),
        "dtype": torch.zeros(2, 3, device="cpu", dtype=torch.int32),
        "device": torch.zeros(2, 3, device="meta", dtype=torch.float32),
        "layout": one.to_sparse(),
    }
    is_like = _made([one, torch.zeros(4, device="cpu")])
    again, second = torch.zeros_like(one), torch.zeros(4, device="cpu")
    if is_like(again, second) is not True:
        return "a guard says no to tensors that are alike"
    for name, other in others.items():
        if is_like(other, second) is not False:
            return f"a guard does not see another {name}"
    if is_like(again.t().contiguous().t(), second) is not True:
        return "a guard says no to other strides"
    if is_like(again, torch.zeros(5, device="cpu")) is not False:
        return "a guard does not see the second tensor"
    return ""

"""`torch.cuda.FloatTensor` and the others of the older names for types, of pretended devices."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...record.signature import DTYPES
from .planned_devices import CPU, DevicePlaces

_TYPES: dict[str, torch.dtype] = {
    f"{row.scalar}Tensor": getattr(torch, name)
    for name, row in DTYPES.items()
    if not name.startswith("complex")
}
_NAMES = {dtype: f"torch.cuda.{name}" for name, dtype in _TYPES.items()}


class _OldType(type):
    """`dtype`: of the tensors that it makes, on the device that is current."""

    places: ClassVar[DevicePlaces]
    dtype: torch.dtype

    def __call__(cls, *given: Any, device: Any = None) -> Any:
        where = "cuda" if device is None else device
        if given and not all(isinstance(one, int) for one in given):
            return torch.tensor(given[0], dtype=cls.dtype, device=where)
        return torch.empty(given or (0,), dtype=cls.dtype, device=where)

    def __instancecheck__(cls, instance: Any) -> bool:
        is_there = isinstance(instance, Tensor) and cls.places.of(instance) != CPU
        return is_there and instance.dtype is cls.dtype


def answer_for_types(places: DevicePlaces) -> None:
    """Makes the types of tensors answer for their places in this process."""
    _OldType.places = places
    by_name = {}
    for name, dtype in _TYPES.items():
        title = f"torch.cuda.{name}"
        made = _OldType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        by_name[title] = made
        setattr(torch.cuda, name, made)
    kind: Any = Tensor
    usual = kind.type

    def type_of(tensor: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        wanted = by_name.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(wanted, _OldType):
            return tensor.to("cuda", wanted.dtype, non_blocking=non_blocking)
        if wanted is None and places.of(tensor) != CPU:
            return _NAMES.get(tensor.dtype) or usual(tensor)
        return usual(tensor, dtype, non_blocking, **kwargs)

    kind.type = type_of
    whole: Any = torch
    usual_default = whole.set_default_tensor_type

    def set_default_tensor_type(wanted: Any) -> None:
        found = by_name.get(wanted, wanted) if isinstance(wanted, str) else wanted
        if isinstance(found, _OldType):
            torch.set_default_dtype(found.dtype)
            torch.set_default_device("cuda")
        else:
            usual_default(wanted)

    whole.set_default_tensor_type = set_default_tensor_type

"""Faults of the data: a NaN, an infinity or a flipped bit in a call's contribution or a parameter.

It is always the first element: of the first tensor that is not empty, or of the parameter.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..record.describe import METHODS, tensors_in
from .call import CannotHappen

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def damage_call(
    action: str,
    arguments: Mapping[str, Any],
    method: str,
    args: tuple[Any, ...],
    group_rank: int,
    announce: Callable[[], None],
) -> None:
    """Damage what this call contributes, in the program's own tensor."""
    op = METHODS[method].op
    options: Any = args[1] if len(args) > 1 else 0
    if op == "broadcast" and int(getattr(options, "rootRank", options)) != group_rank:
        raise CannotHappen(f"a rank that is not the root contributes nothing to {op}", here=True)
    for tensor in tensors_in(METHODS[method].given(args)):
        if tensor.numel():
            _damage(action, arguments, tensor, announce)
            return
    raise CannotHappen(f"the rank contributes nothing to this {op}", here=True)


def damage_parameter(
    action: str, arguments: Mapping[str, Any], announce: Callable[[], None]
) -> None:
    """Damage a parameter of a model: that named `name`, or the first that takes a gradient."""
    name = arguments.get("name")
    for model in _models():
        for found, parameter in model.named_parameters():
            wanted = found == name if name is not None else parameter.requires_grad
            if wanted and parameter.numel() and type(parameter.data) is torch.Tensor:
                _damage(action, arguments, parameter, announce)
                return
    which = "that takes a gradient" if name is None else f"named {name!r}"
    raise CannotHappen(f"no model of this rank has a parameter {which} yet", here=True)


def _models() -> Iterator[nn.Module]:
    """Yields the modules that DDP wraps; then all other models, those with the most parameters
    first."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    children = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in children]
    roots.sort(key=lambda one: sum(1 for _ in one.parameters()), reverse=True)
    wrapped = [one for one in roots if isinstance(one, DistributedDataParallel)]
    yield from (one.module for one in wrapped)
    yield from (one for one in roots if not isinstance(one, DistributedDataParallel))


def _damage(
    action: str,
    arguments: Mapping[str, Any],
    tensor: torch.Tensor,
    announce: Callable[[], None],
) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CannotHappen(f"{action} cannot be put into a {tensor.layout} tensor", here=True)
    # `data` shares no count of writes: autograd must not notice, as it would not notice a bit flip.
    first = tensor.data[(0,) * tensor.dim()]
    if action == "bitflip":
        _flip(first, int(arguments["bit"]), announce)
        return
    if not (first.is_floating_point() or first.is_complex()):
        kind = str(first.dtype).removeprefix("torch.")
        raise CannotHappen(f"there is no {action} among {kind} numbers", here=True)
    announce()
    first.fill_(math.nan if action == "nan" else math.inf)


def _flip(element: torch.Tensor, bit: int, announce: Callable[[], None]) -> None:
    if element.is_complex():
        element = torch.view_as_real(element)[0]
    bits = 8 * element.element_size()
    if bit >= bits:
        kind = str(element.dtype).removeprefix("torch.")
        raise CannotHappen(
            f"a {kind} number has no bit {bit}; its highest is {bits - 1}", here=True
        )
    number = element.view(_INTEGERS[element.element_size()])
    mask = 1 << bit
    if number.dtype is not torch.uint8 and bit == bits - 1:
        mask -= 1 << bits  # the sign of a signed number
    announce()
    number.bitwise_xor_(mask)

"""Functions of torch that take sizes one by one. Given one that says of itself that it is torch's
to ask, they take it for all of them: so it is asked before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .planned_devices import DEFAULT_DEVICES

_OF_TORCH = ("zeros", "ones", "empty", "rand", "randn")
_OF_TENSORS = ("expand", "new_zeros", "new_ones", "new_empty", "resize_")


@DEFAULT_DEVICES
def ask_sizes(known: Callable[[Any], Any], nothing_unknown: Callable[[], bool]) -> None:
    """From now on `known` is asked about each of their arguments, in this process; not while there
    is `nothing_unknown`."""
    from torch.utils import _device

    home: Any = _device
    home._device_constructors()  # which keeps the functions as they are now
    for owner, names in ((torch, _OF_TORCH), (Tensor, _OF_TENSORS)):
        for name in names:
            setattr(owner, name, _asking(getattr(owner, name), known, nothing_unknown))


def _asking(usual: Any, known: Callable[[Any], Any], nothing_unknown: Callable[[], bool]) -> Any:
    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if nothing_unknown():
            return usual(*args, **kwargs)
        return usual(*map(known, args), **kwargs)

    return function

"""A group of ours whose tensors on some other device go to one of torch's own backends.

For init_process_group("cpu:tcp,cuda:nccl"): a group in Python is taken by torch for the whole, so
the other devices' backends are held, and called, by the group itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..engine.work import JoinedWork
from .coalesced import Coalesced
from .collectives import Collectives
from .point_to_point import PointToPoint
from .process_group import CoreGroup

_AS_BACKEND = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "gather_into_tensor": "gather_single",
    "recvAnysource": "recv_anysource",
}
"""Methods that torch's backends show to Python by another name only."""

_EACH = {
    "all_gather_single_coalesced": "_allgather_base",
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_single_coalesced": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}
"""Methods that torch's backends do not show to Python at all, and what each pair then calls."""


class CompositeGroup(CoreGroup):
    """`others` are torch's backends by device type."""

    others: dict[str, Any]

    @property
    def _device_types(self) -> list[torch.device]:
        return [*super()._device_types, *map(torch.device, self.others)]

    def _get_backend(self, device: torch.device) -> Any:
        return self.others.get(device.type) or super()._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        for backend in self.others.values():
            backend.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _start_coalescing(self, device: Any = None) -> None:
        backend = self.others.get(device.type) if device is not None else None
        if backend is None:
            super()._start_coalescing(device)
        elif backend.supports_coalescing:
            backend._start_coalescing()

    def _end_coalescing(self, device: Any = None) -> Any:
        backend = self.others.get(device.type) if device is not None else None
        if backend is None:
            return super()._end_coalescing(device)
        return backend._end_coalescing() if backend.supports_coalescing else JoinedWork([])

    def split_group(self, new_ranks: Sequence[int], *how: Any, **named: Any) -> CoreGroup | None:
        """Splits the group as `CoreGroup.split_group` does, for all devices whose groups are ours.
        Torch's own backends are not split: their devices' tensors go to this group's backend, if it
        takes them."""
        ours = {device: one for device, one in self.others.items() if isinstance(one, CoreGroup)}
        parts = {device: one.split_group(new_ranks, *how, **named) for device, one in ours.items()}
        group = super().split_group(new_ranks, *how, **named)
        if group is not None:
            assert isinstance(group, CompositeGroup)
            group.others = parts
        return group

    def abort(self) -> None:
        super().abort()
        for backend in self.others.values():
            backend.abort()

    def shutdown(self) -> None:
        super().shutdown()
        for backend in self.others.values():
            backend.shutdown()


def _first_tensor(arguments: Sequence[Any]) -> Tensor | None:
    for argument in arguments:
        if isinstance(argument, Tensor):
            return argument
        if isinstance(argument, list | tuple):
            found = _first_tensor(argument)
            if found is not None:
                return found
    return None


def _by_device(name: str) -> Callable[..., Any]:
    ours: Callable[..., Any] = getattr(CoreGroup, name)
    theirs = _AS_BACKEND.get(name, name)

    def call(self: CompositeGroup, *args: Any, **kwargs: Any) -> Any:
        tensor = _first_tensor((*args, *kwargs.values()))
        backend = None if tensor is None else self.others.get(tensor.device.type)
        if backend is None:
            return ours(self, *args, **kwargs)
        if name not in _EACH:
            return getattr(backend, theirs)(*args, **kwargs)
        outputs, inputs, *rest = (*args, *kwargs.values())
        each = getattr(backend, _EACH[name])
        works = [each(out, data, *rest) for out, data in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else JoinedWork(works)

    call.__name__ = name
    call.__qualname__ = f"CompositeGroup.{name}"
    return call


for _owner in (Coalesced, Collectives, PointToPoint):
    for _name, _method in vars(_owner).items():
        # Not what stands behind the calls, nor a barrier, which has no tensor.
        is_call = callable(_method) and (_name[0] != "_" or hasattr(ProcessGroup, _name))
        if is_call and _name != "barrier":
            setattr(CompositeGroup, _name, _by_device(_name))

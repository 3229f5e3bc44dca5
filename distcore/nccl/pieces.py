"""Tensors as NCCL wants them: contiguous and of one dimension; copied only where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

Store = Callable[[], object]


def _whole(tensor: Tensor) -> bool:
    """Whether the elements lie in memory one after another, as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _line(tensor: Tensor) -> Tensor:
    """A contiguous tensor as one dimension of stride 1: a single element may have any."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def flat(tensor: Tensor) -> Tensor:
    """Returns a tensor to be read: a view of one dimension, or a copy."""
    tensor = tensor.detach()
    if _whole(tensor):
        return _line(tensor)
    return _line(tensor.resolve_conj().resolve_neg().contiguous())


class WriteTarget:
    """A tensor to be written: `flat` is its own memory, or room that `stores` copies back from.
    With `reads`, the room has the tensor's elements to begin with."""

    __slots__ = ("flat", "stores")

    def __init__(self, tensor: Tensor, reads: bool = False) -> None:
        tensor = tensor.detach()
        self.stores: list[Store] = []
        if _whole(tensor):
            self.flat = _line(tensor)
            return
        room = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if reads:
            room.copy_(tensor)
        self.flat = room.view(-1)
        self.stores.append(lambda: tensor.copy_(room))


def adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """Returns one view of all of them, where each begins where the one before ends; else None."""
    first = tensors[0].detach()
    end = first.data_ptr()
    for one in tensors:
        if not _whole(one) or one.data_ptr() != end or one.dtype is not first.dtype:
            return None
        end += one.nbytes
    storage = first.untyped_storage()
    start = first.storage_offset() * first.dtype.itemsize
    count = sum(one.numel() for one in tensors)
    if start + count * first.dtype.itemsize > storage.nbytes():
        return None  # neighbours by accident, of several storages
    if any(one.untyped_storage().data_ptr() != storage.data_ptr() for one in tensors):
        return None
    return first.as_strided((count,), (1,), first.storage_offset())


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Returns tensors to be read, one after another: a view where they lie so, else a copy."""
    found = adjacent(tensors)
    return torch.cat([flat(one) for one in tensors]) if found is None else found


def room_for(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Store]]:
    """Returns memory to be written for tensors one after another: their own where they lie so; else
    room, and the copies from it."""
    found = adjacent(tensors)
    if found is not None:
        return found, []
    first = tensors[0]
    count = sum(one.numel() for one in tensors)
    room = torch.empty(count, dtype=first.dtype, device=first.device)
    parts = torch.split(room, [one.numel() for one in tensors])
    stores: list[Store] = [
        partial(one.detach().copy_, part.view(one.shape))
        for one, part in zip(tensors, parts, strict=True)
    ]
    return room, stores


def cut(whole: Tensor, size: int) -> list[Tensor]:
    """Parts of a tensor of one dimension, one for each rank, alike but for the last ones."""
    step = -(-whole.numel() // size)
    count = whole.numel()
    return [whole[min(r * step, count) : min((r + 1) * step, count)] for r in range(size)]

"""The elements that NCCL takes as they are, or as others, and the reductions that it leaves to us.

| elements                               | as                                                   |
|----------------------------------------|------------------------------------------------------|
| moved, of any dtype                    | their bytes                                          |
| 8, 32, 64-bit integers, floats, float8 | themselves: SUM, PRODUCT, MIN, MAX, AVG, PREMUL_SUM  |
| bool                                   | uint8: "or" is MAX, "and" is MIN, "not equal" the    |
|                                        | lowest bit of SUM                                    |
| complex                                | pairs of floats: SUM, AVG, PREMUL_SUM                |
| int16, uint16                          | int32, in a copy: twice the bytes                    |
| BAND, BOR, BXOR of integers            | parts exchanged, combined here, and gathered: three  |
|                                        | steps and a copy of the data instead of one call     |

NCCL wants tensors that are contiguous and of one dimension, and they are copied only where they are
not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..base.call_text import dtype_name
from ..base.reduction import (
    BITS,
    COMPLEX_AS,
    UNSIGNED_AS,
    Reduction,
    op_name,
    premul_factor,
    reduction_for,
)

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FLOAT8_CAPABILITY = (9, 0)
_NARROW = (torch.int16, torch.uint16)
_NAMES = {"SUM": "SUM", "PRODUCT": "PROD", "MIN": "MIN", "MAX": "MAX", "AVG": "AVG"}
_OF_BOOL = {"SUM": "MAX", "MAX": "MAX", "BOR": "MAX", "PRODUCT": "MIN", "MIN": "MIN", "BAND": "MIN"}

PREMUL_SUM = "PREMUL_SUM"


@dataclass(frozen=True)
class Reducing:
    """A reduce op on elements of one dtype, in NCCL's terms. Made by `reducing_for`.

    `op` is NCCL's name of it, or PREMUL_SUM with its `factor`. `seen_as`: the elements are read as
    those of another dtype of the same or half their size. `computed_as`: they are copied to
    elements of another dtype first. `times`: they are multiplied first, in a copy. `combine`: NCCL
    cannot, and the ranks do it themselves.
    """

    op: str
    dtype: torch.dtype
    seen_as: torch.dtype
    computed_as: torch.dtype | None = None
    factor: complex | None = None
    times: complex | None = None
    divides: bool = False
    lowest_bit: bool = False
    combine: Callable[..., Tensor] | None = None

    def __repr__(self) -> str:
        how = "combined by the ranks" if self.combine else f"as {dtype_name(self.seen_as)}"
        if self.computed_as is not None:
            how = f"computed as {dtype_name(self.computed_as)}"
        return f"<Reducing {self.op} of {dtype_name(self.dtype)}, {how}>"

    @property
    def in_place(self) -> bool:
        """Whether NCCL can work on the elements themselves."""
        return self.computed_as is None and self.times is None

    def view(self, flat: Tensor) -> Tensor:
        """The elements of a contiguous tensor, as NCCL sees them; the same memory."""
        if flat.dtype is self.seen_as:
            return flat
        if flat.dtype.is_complex:
            return torch.view_as_real(flat).view(-1)
        return flat.view(self.seen_as)

    def contribution(self, flat: Tensor) -> Tensor:
        """Returns this rank's contribution: a view of the elements, or a copy where `in_place` is
        false."""
        if self.times is not None:
            flat = flat * self.times
        if self.computed_as is not None:
            return flat.to(self.computed_as)
        return self.view(flat)

    def finish(self, result: Tensor, flat: Tensor, size: int) -> None:
        """Put what `size` ranks reduced to where it belongs; `result` may be a view of `flat`."""
        if self.divides:
            result.div_(size, rounding_mode=None if result.is_floating_point() else "trunc")
        if self.lowest_bit:
            result.bitwise_and_(1)
        if self.computed_as is not None:
            flat.copy_(result)
        elif result.data_ptr() != flat.data_ptr():
            self.view(flat).copy_(result)

    @property
    def finishes(self) -> bool:
        """Whether `finish` has anything to do when NCCL wrote to the elements themselves."""
        return self.divides or self.lowest_bit or not self.in_place


def moved(flat: Tensor) -> Tensor:
    """The bytes of a contiguous tensor of one dimension: how NCCL moves them without looking."""
    if flat.dtype is torch.uint8:
        return flat
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).view(-1)
    return flat.view(torch.uint8)


_made: dict[tuple[int, torch.dtype], Reducing] = {}


def reducing_for(op: Any, dtype: torch.dtype, backend: str) -> Reducing:
    """Returns how NCCL does `op` on elements of `dtype`.

    Raises TypeError, naming op, dtype and `backend`, where the two do not go together. float8 needs
    compute capability 9.0: `refuse_float8` tells of the device.
    """
    key = (hash(op), dtype)
    made = _made.get(key)
    if made is None:
        name = op_name(op)
        if name is not None and dtype in (*FLOAT8, *UNSIGNED_AS) and name not in BITS:
            made = _beyond_the_cpu(op, name, dtype, backend)
        else:
            made = reducing_of(reduction_for(op, dtype, backend))  # refuses what makes no sense
        if made.factor is None and made.times is None:
            _made[key] = made
    return made


def refuse_float8(reducing: Reducing, capability: tuple[int, int], backend: str) -> None:
    """TypeError for a device that cannot reduce float8."""
    if reducing.dtype in FLOAT8 and tuple(capability) < _FLOAT8_CAPABILITY:
        raise TypeError(
            f"backend {backend} cannot reduce {reducing.dtype} with {reducing.op}: NCCL needs "
            f"compute capability 9.0 for it, and this device has {capability[0]}.{capability[1]}"
        )


def reducing_of(known: Reduction) -> Reducing:
    """Returns how NCCL does what torch does on the CPU."""
    dtype = known.dtype
    if dtype is torch.bool:
        parity = known.op == "BXOR"
        nccl_op = "SUM" if parity else _OF_BOOL[known.op]
        return Reducing(nccl_op, dtype, torch.uint8, lowest_bit=parity)
    if known.op in BITS:
        seen_as = UNSIGNED_AS.get(dtype, dtype)
        return Reducing(known.op, dtype, seen_as, combine=known.function)
    if dtype in _NARROW:
        return _narrow(known.op, dtype, known.factor)
    seen_as = COMPLEX_AS.get(dtype, dtype)
    if known.op == PREMUL_SUM:
        if isinstance(known.factor, complex):
            # NCCL knows no complex numbers: the factor is multiplied in before.
            return Reducing("SUM", dtype, seen_as, times=known.factor)
        return Reducing(PREMUL_SUM, dtype, seen_as, factor=known.factor)
    return Reducing(_NAMES[known.op], dtype, seen_as)


def _beyond_the_cpu(op: Any, name: str, dtype: torch.dtype, backend: str) -> Reducing:
    """NCCL reduces dtypes that torch does not on the CPU."""
    factor = premul_factor(op, dtype, backend) if name == PREMUL_SUM else None
    if dtype in _NARROW:
        return _narrow(name, dtype, factor)
    if factor is not None:
        return Reducing(PREMUL_SUM, dtype, dtype, factor=factor.real)
    return Reducing(_NAMES[name], dtype, dtype)


def _narrow(name: str, dtype: torch.dtype, factor: complex | None) -> Reducing:
    """16-bit integers as 32-bit ones. What overflows 16 bits is cut off at the end, which is where
    a sum or product that wraps around at every step would end as well."""
    wide = torch.int32
    if name == PREMUL_SUM:
        assert factor is not None
        return Reducing(PREMUL_SUM, dtype, wide, wide, factor=factor.real)
    if name == "AVG":
        return Reducing("SUM", dtype, wide, wide, divides=True)
    return Reducing(_NAMES[name], dtype, wide, wide)


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

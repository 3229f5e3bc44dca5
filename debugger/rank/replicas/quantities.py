"""The quantities of a replica that are compared after each step: its parameters, and what made
them.

Four quantities must be equal on all ranks that hold a replica: its parameters, the gradients of its
last step, the state that torch's own optimisers keep of it, and their hyper-parameters. Each has
columns in the entries of the record (see `record.replicas`), so that the diagnosis can say which of
them was the first to differ: ranks that step by other gradients have other parameters afterwards.

Along an axis of a device mesh it is the local part of a DTensor that is compared, where its
placement along that axis is `Replicate()`.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...record.replicas import (
    GRADIENT,
    HYPERPARAMETER,
    OPTIMIZER_CLASS,
    OPTIMIZER_STATE,
    PARAMETER,
    bits_of,
)
from ...record.signature import hash64
from ...record.snapshot import Column

ODD = 0x9E3779B97F4A7C15
_ABSENT = 0
MOST_SAMPLES = 1 << 12
"""Elements whose values stand in each entry of a replica: 32 KiB."""


@dataclass(frozen=True)
class Axis:
    """A dimension of a device mesh, along which DTensors are replicated."""

    mesh: Any
    dim: int

    @property
    def name(self) -> str:
        """The program's name for it, or its number."""
        names = self.mesh.mesh_dim_names
        return str(names[self.dim]) if names else f"dim_{self.dim}"

    @property
    def group(self) -> Any:
        """The process group of this rank along it."""
        return self.mesh.get_group(self.dim)


def axes_of(tensor: Any) -> Iterator[Axis]:
    """The axes of its mesh along which a DTensor is replicated; none for any other tensor."""
    if _is_dtensor(tensor):
        for dim, placement in enumerate(tensor.placements):
            if placement.is_replicate():
                yield Axis(tensor.device_mesh, dim)


def part(tensor: Any, axis: Axis | None) -> Tensor | None:
    """Returns this rank's part of a tensor that must be equal along the axis (None: on all ranks of
    a group, of a plain tensor); None where that is nothing, or nothing that can be read."""
    if axis is not None and axis in axes_of(tensor):
        with torch.no_grad():
            tensor = tensor.to_local()
    elif axis is not None or _is_dtensor(tensor):
        return None
    return tensor if _is_readable(tensor) else None


def local(tensor: Any) -> Tensor | None:
    """Returns this rank's part of a tensor, whatever its placements are; None where that is nothing
    that can be read."""
    if _is_dtensor(tensor):
        with torch.no_grad():
            tensor = tensor.to_local()
    return tensor if _is_readable(tensor) and tensor.numel() else None


def columns(optimizer: Optimizer | None, names: Sequence[str]) -> list[Column]:
    """Returns the columns of `ReplicaReading.values` for a replica of parameters with these names,
    in order."""
    found = [Column(quantity, name) for quantity in _BY_PARAMETER for name in names]
    if optimizer is not None:
        found.append(Column(HYPERPARAMETER, OPTIMIZER_CLASS))
        found += [Column(HYPERPARAMETER, name) for name, _ in hyperparameters(optimizer)]
    return found


def samples(parameters: Sequence[Tensor], axis: Axis | None) -> list[int]:
    """Returns how many values of each column of `parameters` are put on record."""
    share = MOST_SAMPLES // (len(_BY_PARAMETER) * len(parameters))
    sizes = [0 if (one := part(each, axis)) is None else one.numel() for each in parameters]
    return [min(size, share) for size in sizes] * len(_BY_PARAMETER)


def random_states() -> dict[str, int]:
    """Returns a digest of the state by which random numbers are drawn on each kind of device."""
    cuda: Any = torch.cuda
    on_cuda = cuda.get_rng_state() if cuda.is_initialized() else torch.empty(0)
    cpu, of_cuda = digests([torch.get_rng_state(), on_cuda])
    return {"cpu": cpu, "cuda": of_cuda}


class ReplicaReading:
    """The values of all columns of a replica now.

    Before the first step (`stepped` is False) nothing tells of gradients and state: the first step
    may be one that each rank makes on its own.
    """

    def __init__(
        self,
        optimizer: Optimizer | None,
        parameters: Sequence[Tensor],
        axis: Axis | None,
        stepped: bool,
    ) -> None:
        self._optimizer = optimizer
        self._tensors = [_parts([one], axis) for one in parameters]
        self._tensors += [_parts([one.grad] if stepped else [], axis) for one in parameters]
        self._numbers: list[list[float]] = [[] for _ in self._tensors]
        for parameter in parameters:
            state = _state(optimizer, parameter) if stepped and optimizer is not None else []
            self._tensors.append(_parts([one for one in state if isinstance(one, Tensor)], axis))
            self._numbers.append([float(one) for one in state if not isinstance(one, Tensor)])

    def values(self, count: int) -> list[int]:
        """64 bits for each of `count` columns: digests, and of a number its bits as a float64.
        Reads every element once, and waits for the devices that have them."""
        found_digests = iter(digests(list(itertools.chain(*self._tensors))))
        found = []
        for tensors, numbers in zip(self._tensors, self._numbers, strict=True):
            total = _ABSENT
            for part in (*itertools.islice(found_digests, len(tensors)), *map(bits_of, numbers)):
                total = (total * ODD + part) & MASK
            found.append(total)
        if self._optimizer is not None:
            kind = type(self._optimizer)
            found.append(hash64(f"{kind.__module__}.{kind.__qualname__}"))
            found += [bits_of(value) for _, value in hyperparameters(self._optimizer)]
        # A scheduler may have added a hyper-parameter since: the first ones are what they were.
        return (found + [_ABSENT] * count)[:count]

    def samples(self, counts: Sequence[int]) -> list[float]:
        """`counts` elements of the columns, evenly spaced; NaN for those that are not there."""
        alike: dict[tuple[object, ...], list[tuple[int, Tensor]]] = {}
        with torch.no_grad():
            for column, (tensors, count) in enumerate(zip(self._tensors, counts, strict=False)):
                for one in tensors if count else ():
                    real = torch.view_as_real(one) if one.is_complex() else one
                    flat = real if real.is_contiguous() else real.reshape(-1)
                    share, size = max(1, count // len(tensors)), flat.numel()
                    # One view: a slice of a flat view takes twice as long.
                    spaced = flat.as_strided((min(share, size),), (max(1, size // share),))
                    alike.setdefault((flat.dtype, flat.device), []).append((column, spaced))
        taken: list[list[float]] = [[] for _ in counts]
        for pieces in alike.values():
            numbers = iter(torch.cat([one for _, one in pieces]).to(torch.float64).tolist())
            for column, one in pieces:
                taken[column] += itertools.islice(numbers, len(one))
        padded = zip(taken, counts, strict=True)
        return [one for of, count in padded for one in (of + [math.nan] * count)[:count]]


_BY_PARAMETER = (PARAMETER, GRADIENT, OPTIMIZER_STATE)
_COMPARED = (
    "lr",
    "momentum",
    "dampening",
    "weight_decay",
    "betas",
    "eps",
    "alpha",
    "rho",
    "lambd",
    "nesterov",
    "amsgrad",
    "maximize",
    "centered",
)
"""What torch's optimisers call what decides about a step; all else may be for the program alone."""


def _is_dtensor(tensor: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_readable(tensor: Any) -> bool:
    """Whether it is whole on this rank, with elements that can be read."""
    return (
        tensor is not None
        and (type(tensor) in _PLAIN or type(tensor.data) is Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
    )


def _parts(tensors: Sequence[Tensor | None], axis: Axis | None) -> list[Tensor]:
    return [found for one in tensors if (found := part(one, axis)) is not None]


def _state(optimizer: Optimizer, parameter: Tensor) -> list[Any]:
    """Returns what the optimiser keeps of a parameter: tensors and numbers, in the order of their
    names.

    Of torch's own optimisers only: others may keep what is of one rank alone, as those that
    compress gradients keep what they left out.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return []
    kept: Mapping[str, Any] = optimizer.state.get(parameter) or {}
    by_name = sorted(kept.items(), key=lambda one: str(one[0]))
    return [value for _, value in by_name if isinstance(value, (Tensor, int, float))]


def hyperparameters(optimizer: Optimizer) -> list[tuple[str, float]]:
    """Name and value of each number that decides about a step."""
    return [
        (f'param_groups[{index}]["{name}"]{where}', value)
        for index, group in enumerate(optimizer.param_groups)
        for name in _COMPARED
        for where, value in _numbers(group.get(name))
    ]


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        yield "", float(value)
    elif isinstance(value, (tuple, list)):
        for index, one in enumerate(value):
            yield from ((f"[{index}]{where}", number) for where, number in _numbers(one))


MASK = (1 << 64) - 1
ROW = 1 << 16
ON_CPU, ELSEWHERE = 1 << 17, 1 << 22
"""Words that are mixed at once: what a core's cache holds, and enough for a GPU."""
SMALL = 1 << 16
"""Elements of a tensor that is copied to be read together with others."""
_SEED = 0x5EED
WORD = 8
"""The bytes that are taken for one integer."""
_LOWER = (1 << 32) - 1
"""The lower half of that."""


def digests(tensors: Sequence[Tensor]) -> list[int]:
    """Returns 64 bits of each: equal for equal bits, other when any single element is another.
    Reads every element once, and waits for the devices that have them.

    Each eight bytes, as an integer, times an odd number of their position, are added up modulo
    2**64. Integer arithmetic gives the same on every device and in every order of addition. All
    NaNs count as one: which of them an addition gives depends on the order of its operands.
    """
    with torch.no_grad():
        by_id = {id(one): one for one in tensors}  # one that is tied comes several times
        once = list(by_id.values())
        numbers: dict[int, int] = {}
        by_device: dict[torch.device, tuple[list[int], list[Tensor]]] = {}
        for places, table in tables(once):
            all_places, results = by_device.setdefault(table.device, ([], []))
            all_places += places
            results.append(torch.stack([raw_digests(table), _not_a_number(table)]))
        for all_places, results in by_device.values():  # with one wait for each device
            both = torch.cat(results, 1).tolist()
            for place, number, has_nan in zip(all_places, *both, strict=True):
                if has_nan:
                    one = once[place]
                    one_nan = torch.where(one.isnan(), torch.full_like(one, math.nan), one)
                    number = int(raw_digests(one_nan.contiguous().reshape(1, -1)))
                numbers[place] = number & MASK
        of_id = {key: numbers[place] for place, key in enumerate(by_id)}
        return [of_id[id(one)] for one in tensors]


def tables(tensors: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor]]:
    """Yields contiguous tables of shape (tensors, elements), and the places of those that are the
    rows: small ones of one shape are read together, since there it is the number of operations that
    takes the time. A table is to be read before the next one is made."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(tensors):
        together = one.dtype, one.device, one.numel()
        alike.setdefault(together if one.numel() <= SMALL else (place,), []).append(place)
    for places in alike.values():
        at_once = max(1, ON_CPU * WORD // max(1, tensors[places[0]].nbytes))
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            flat = [tensors[place].reshape(-1) for place in some]
            if len(flat) == 1:
                yield some, flat[0].contiguous()[None]
            else:
                table = _scratch.table(len(flat), flat[0])
                yield some, torch.stack(flat, out=table)


def raw_digests(rows: Tensor) -> Tensor:
    """Returns one of `digests` for each row of a contiguous tensor of shape (tensors, elements), on
    its device: other where a NaN has other bits."""
    size = rows.element_size()
    if not rows.numel():
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    if lacking := -rows.shape[1] * size % WORD:
        rows = torch.nn.functional.pad(rows, (0, lacking // size))
    elif rows.storage_offset() * size % WORD:
        rows = rows.clone()
    return _fold(rows.view(torch.int64))


def _fold(words: Tensor) -> Tensor:
    """The weighted sums of the last dimension, by rows so that the weights stay few: those of its
    row and its column."""
    weights = _weights_on(words.device)
    tensors, count = words.shape
    if count > ROW:
        rows, rest = divmod(count, ROW)
        sums = [_fold(words[:, : rows * ROW].reshape(tensors * rows, ROW)).view(tensors, rows)]
        if rest:
            sums.append(_fold(words[:, rows * ROW :])[:, None])
        return _fold(torch.cat(sums, 1))
    at_once = max(1, (ON_CPU if words.is_cpu else ELSEWHERE) // count)
    sums = []
    for first in range(0, tensors, at_once):
        some = words[first : first + at_once]
        # Of a word's highest bit a product keeps nothing but that, and two changed signs would make
        # up for each other. So its lower half is XORed with the upper one: adding takes thrice as
        # long, and without a mask -1 and 0 would be one.
        mixed = _scratch.mixed(some)
        torch.bitwise_right_shift(some, 32, out=mixed)
        mixed.bitwise_and_(_LOWER).bitwise_xor_(some)
        factors = weights[:count]
        # On the CPU a product of matrices writes no products of elements; elsewhere torch has none.
        sums.append(torch.mv(mixed, factors) if mixed.is_cpu else mixed.mul_(factors).sum(1))
    return torch.cat(sums)


class _Scratch(threading.local):
    """Memory of this thread that is written again and again: the first touch of new memory takes
    as long as all else."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # what is made within may be written within alone
            made = torch.empty(2, ON_CPU, dtype=torch.int64, device="cpu")
        self._mixed: Tensor = made[0]
        self._table: Tensor = made[1]

    def mixed(self, like: Tensor) -> Tensor:
        """Returns words of this shape."""
        if not like.is_cpu:
            return torch.empty_like(like)
        return self._mixed[: like.numel()].view(like.shape)

    def table(self, count: int, row: Tensor) -> Tensor:
        """Returns so many rows that are like this one."""
        if not row.is_cpu:
            return row.new_empty(count, len(row))
        return self._table.view(row.dtype)[: count * len(row)].view(count, len(row))


_scratch = _Scratch()


@functools.cache
def _weights_on(device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(_SEED)  # not the program's own
    made = torch.randint(-(1 << 63), (1 << 63) - 1, (ROW,), generator=generator, device="cpu")
    return (made | 1).to(device)


def _not_a_number(table: Tensor) -> Tensor:
    """Whether the sum of each row is NaN: so it is where an element is, and seldom else."""
    if not (table.is_floating_point() or table.is_complex()) or table.element_size() == 1:
        return torch.zeros(len(table), dtype=torch.int64, device=table.device)
    return table.sum(1).isnan().to(torch.int64)

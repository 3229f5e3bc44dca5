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


def columns(
    optimizer: Optimizer | None, names: Sequence[str], parameters: Sequence[Tensor]
) -> list[Column]:
    """Returns the columns of `read` for a replica of these parameters with these names, in
    order."""
    found = [Column(quantity, name) for quantity in _BY_PARAMETER for name in names]
    if optimizer is not None:
        found.append(Column(HYPERPARAMETER, OPTIMIZER_CLASS))
        numbers = hyperparameters(optimizer, parameters)
        found += [Column(HYPERPARAMETER, name) for name, _ in numbers]
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


def read(
    optimizer: Optimizer | None,
    parameters: Sequence[Tensor],
    axis: Axis | None,
    stepped: bool,
    columns: int,
    samples: Sequence[int],
) -> tuple[list[int], list[float]]:
    """Returns 64 bits for each of so many columns of a replica: digests, and of a number its bits
    as a float64. And elements of the columns, `samples` of each, evenly spaced; NaN for those that
    are not there. Reads every element once, and waits for the devices that have them.

    Before the first step (`stepped` is False) nothing tells of gradients and state: the first step
    may be one that each rank makes on its own.
    """
    kept: list[list[Any]] = [[one] for one in parameters]
    kept += [[one.grad] if stepped else [] for one in parameters]
    kept += _states(optimizer if stepped else None, parameters)
    counts = [*samples, *[0] * (len(kept) - len(samples))]
    wanted: list[tuple[Tensor, int]] = []
    numbers: list[tuple[int, list[int]]] = []
    for values, count in zip(kept, counts, strict=True):
        parts = [found for one in values if (found := part(one, axis)) is not None]
        share = max(1, count // max(1, len(parts))) if count else 0
        wanted += [(one, share) for one in parts]
        of_it = [bits_of(one) for one in values if isinstance(one, (int, float))]
        numbers.append((len(parts), of_it))
    readings = iter(_readings(wanted))
    totals: list[int] = []
    elements: list[float] = []
    for (tensors, further), count in zip(numbers, counts, strict=True):
        total, end = _ABSENT, len(elements) + count
        for digest, sampled in itertools.islice(readings, tensors):
            total = (total * ODD + digest) & MASK
            elements += sampled
        for number in further:
            total = (total * ODD + number) & MASK
        totals.append(total)
        del elements[end:]
        elements += [math.nan] * (end - len(elements))
    if optimizer is not None:
        kind = type(optimizer)
        totals.append(hash64(f"{kind.__module__}.{kind.__qualname__}"))
        totals += [bits_of(value) for _, value in hyperparameters(optimizer, parameters)]
    # A scheduler may have added a hyper-parameter since: the first ones are what they were.
    return (totals + [_ABSENT] * columns)[:columns], elements


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


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_dtensor(tensor: Any) -> bool:
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def _is_readable(tensor: Any) -> bool:
    """Whether it is whole on this rank, with elements that can be read."""
    return (
        (type(tensor) in _PLAIN or (isinstance(tensor, Tensor) and type(tensor.data) is Tensor))
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
    )


def _states(optimizer: Optimizer | None, parameters: Sequence[Tensor]) -> list[list[Any]]:
    """Returns what the optimiser keeps of each parameter, in the order of the names.

    Of torch's own optimisers only: others may keep what is of one rank alone, as those that
    compress gradients keep what they left out.
    """
    if optimizer is None or not type(optimizer).__module__.startswith("torch.optim"):
        return [[] for _ in parameters]
    every: list[Mapping[Any, Any]] = [optimizer.state.get(one) or {} for one in parameters]
    return [[kept[name] for name in sorted(kept, key=str)] for kept in every]


def hyperparameters(
    optimizer: Optimizer, parameters: Sequence[Tensor] | None = None
) -> list[tuple[str, float]]:
    """Name and value of each number that decides about a step of these parameters (None: of all).
    Others of the optimizer may be one rank's own, a stage's or an expert's, with its own rate."""
    wanted = {id(one) for one in parameters or ()}
    return [
        (f'param_groups[{index}]["{name}"]{where}', value)
        for index, group in enumerate(optimizer.param_groups)
        if parameters is None or any(id(one) in wanted for one in group["params"])
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
LEAST_SQUARE = 256
"""The least words of a tensor whose rows and columns are added up first."""
SMALL = 1 << 16
"""Elements of a tensor that is copied to be read together with others."""
_SEED = 0x5EED
WORD = 8
"""The bytes that are taken for one integer."""
_UPPER = 29
"""The bits by which the upper ones of a word are moved."""


def digests(tensors: Sequence[Tensor]) -> list[int]:
    """Returns 64 bits of each: equal for equal bits, other when any single element is another.
    Reads every element once, and waits for the devices that have them.

    Each eight bytes are an integer. Those of a large tensor are added up modulo 2**64 twice: the
    rows of a table, and the columns of one that is a column wider, since many a matrix has the row
    and column sums of another, as all permutations have. Only changes of four integers or more
    could make up for each other in all of these sums. The sums, or the integers of a small tensor,
    times an odd number of their position each, are added up in turn; a product for each integer
    would take four times as long as all else. Integer arithmetic gives the same on
    every device and in every order of addition. All NaNs count as one: which of them an addition
    gives depends on the order of its operands.
    """
    return [digest for digest, _ in _readings([(one, 0) for one in tensors])]


def _readings(wanted: Sequence[tuple[Tensor, int]]) -> list[tuple[int, Sequence[float]]]:
    """Returns the digest of each of these tensors, and up to so many of its elements."""
    places: dict[int, int] = {}  # one that is tied comes several times
    place_of = [places.setdefault(id(one), len(places)) for one, _ in wanted]
    once = dict(zip(place_of, wanted, strict=True))
    tensors, counts = [one for one, _ in once.values()], [count for _, count in once.values()]
    by_device: dict[torch.device, list[tuple[list[int], Tensor, Tensor, Tensor]]] = {}
    found: dict[int, tuple[int, Sequence[float]]] = {}
    with torch.no_grad():
        for of_table, table in tables(tensors):
            real = torch.view_as_real(table).flatten(1) if table.is_complex() else table
            size, most = real.shape[1], max([counts[place] for place in of_table])
            # One view: a slice of each takes twice as long.
            spaced = real.as_strided(
                (len(of_table), min(most, size)), (size, max(1, size // max(1, most)))
            )
            elements = spaced.to(torch.float64, copy=True)  # the table is written again
            readings = of_table, raw_digests(table), _not_a_number(table), elements
            by_device.setdefault(table.device, []).append(readings)
        for rows in by_device.values():  # with one wait for each kind of number
            digest = torch.cat([of_rows for _, of_rows, _, _ in rows]).tolist()
            has_nan = torch.cat([of_rows for _, _, of_rows, _ in rows]).tolist()
            numbers = torch.cat([of_rows.reshape(-1) for _, _, _, of_rows in rows]).tolist()
            sizes = [(place, row[3].shape[1]) for row in rows for place in row[0]]
            end = 0
            for (place, size), number, of_nan in zip(sizes, digest, has_nan, strict=True):
                if of_nan:
                    one = tensors[place]
                    one_nan = torch.where(one.isnan(), torch.full_like(one, math.nan), one)
                    number = int(raw_digests(one_nan.contiguous().reshape(1, -1)))
                first, end, count = end, end + size, counts[place]
                every = max(1, size // max(1, count))
                found[place] = number & MASK, numbers[first:end:every][:count]
    return [found[place] for place in place_of]


def tables(tensors: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor]]:
    """Yields contiguous tables of shape (tensors, elements), and the places of those that are the
    rows: small ones of one shape are read together, since there it is the number of operations that
    takes the time. A table is to be read before the next one is made."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(tensors):
        alike.setdefault((one.dtype, one.device, one.shape), []).append(place)
    for places in alike.values():
        like = tensors[places[0]]
        fitting = ON_CPU * WORD // max(1, like.nbytes) if like.numel() <= SMALL else 1
        at_once = max(1, fitting)
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            if len(some) == 1:
                yield some, tensors[some[0]].reshape(1, -1).contiguous()
            else:
                table = _scratch.table(len(some), like)
                torch.stack([tensors[place] for place in some], out=table.view(-1, *like.shape))
                yield some, table


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
    return _fold(rows.view(torch.int64), mixed=size >= WORD)


def _fold(words: Tensor, mixed: bool = False) -> Tensor:
    """Returns a digest of each row of words. `mixed`: whether words are mixed before they are
    added up: an element that fills one has its sign where a sum of two signs loses both."""
    tensors, count = words.shape
    if count > ROW:
        rows, rest = divmod(count, ROW)
        cut = words[:, : rows * ROW].reshape(tensors * rows, ROW)
        sums = [_fold(cut, mixed).view(tensors, rows)]
        if rest:
            sums.append(_fold(words[:, rows * ROW :], mixed)[:, None])
        return _fold(torch.cat(sums, 1))
    at_once = max(1, (ON_CPU if words.is_cpu else ELSEWHERE) // count)
    if tensors > at_once:
        return torch.cat([_fold(some, mixed) for some in torch.split(words, at_once)])
    if count >= LEAST_SQUARE:
        width = 1 << (count.bit_length() - 1) // 2
        of_rows, of_columns = count // width * width, count // (width + 1) * (width + 1)
        whole = _mixed(words) if mixed else words
        rows_of = whole[:, :of_rows].view(tensors, -1, width)
        columns_of = whole[:, :of_columns].view(tensors, -1, width + 1)
        ends = words[:, of_rows:], words[:, of_columns:]
        words = torch.cat([rows_of.sum(2), columns_of.sum(1), *ends], 1)
    factors = _weights_on(words.device)[: words.shape[1]]
    # On the CPU a product of matrices writes no products of elements; elsewhere torch has none.
    words = _mixed(words)
    return torch.mv(words, factors) if words.is_cpu else words.mul_(factors).sum(1)


def _mixed(words: Tensor) -> Tensor:
    """Returns words whose lower bits are XORed with the upper ones. Of a word's highest bit a
    product keeps nothing but that, and two changed signs would make up for each other. By half a
    word the signs of two float32 would, when both change."""
    shifted = words >> _UPPER
    return shifted.bitwise_and_((1 << 64 - _UPPER) - 1).bitwise_xor_(words)


class _Scratch(threading.local):
    """Memory of this thread that is written again and again: the first touch of new memory takes
    as long as all else."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # what is made within may be written within alone
            self._table = torch.empty(ON_CPU, dtype=torch.int64, device="cpu")

    def table(self, count: int, like: Tensor) -> Tensor:
        """Returns so many rows of the elements of a tensor like this one."""
        size = like.numel()
        if not like.is_cpu:
            return like.new_empty(count, size)
        return self._table.view(like.dtype)[: count * size].view(count, size)


_scratch = _Scratch()


@functools.cache
def _weights_on(device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(_SEED)  # not the program's own
    made = torch.randint(-(1 << 63), (1 << 63) - 1, (ROW,), generator=generator, device="cpu")
    return (made | 1).to(device)


def _not_a_number(table: Tensor) -> Tensor:
    """Whether the sum of each row is NaN: so it is where an element is, and seldom else."""
    if not (table.is_floating_point() or table.is_complex()) or table.element_size() == 1:
        return table.new_zeros(len(table), dtype=torch.bool)
    return table.sum(1).isnan()

"""64 bits of a tensor: equal for equal bits, other when any single element is another.

Each element's bits, as an integer, times an odd number of its position, are added up modulo 2**64.
Integer arithmetic gives the same on every device and in every order of addition. All NaNs count as
one: which of them an addition gives depends on the order of its operands.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

MASK = (1 << 64) - 1
ROW = 1 << 16
ROWS_AT_ONCE = 64
_SEED = 0x5EED
_WORDS = {1: torch.int8, 2: torch.int16}
"""By the size of an element in bytes; larger ones are cut into 32 bits: of 64, two changed signs
would make up for each other."""


def digests(tensors: Sequence[Tensor]) -> list[int]:
    """The digest of each. Reads every element once, and waits for the devices that have them."""
    with torch.no_grad():
        found = _values([_digest(tensor) for tensor in tensors])
        sums = _values([_not_a_number(tensor) for tensor in tensors])
        for index, has_nan in enumerate(sums):
            if has_nan:
                tensor = tensors[index].detach()
                one_nan = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
                found[index] = _values([_digest(one_nan)])[0]
    return [value & MASK for value in found]


def _digest(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    return _fold(flat.view(_WORDS.get(flat.element_size(), torch.int32)))


def _fold(words: Tensor) -> Tensor:
    """The weighted sum, by rows so that the weights stay few: those of its row and its column."""
    weights = _weights_on(words.device)
    count = words.numel()
    if count <= ROW:
        return (words * weights[:count]).sum()
    rows, rest = divmod(count, ROW)
    table = words[: rows * ROW].view(rows, ROW)
    sums = [
        (table[first : first + ROWS_AT_ONCE] * weights).sum(1)
        for first in range(0, rows, ROWS_AT_ONCE)
    ]
    if rest:
        sums.append((words[rows * ROW :] * weights[:rest]).sum().view(1))
    return _fold(torch.cat(sums))


@functools.cache
def _weights_on(device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(_SEED)  # not the program's own
    made = torch.randint(-(1 << 63), (1 << 63) - 1, (ROW,), generator=generator, device="cpu")
    return (made | 1).to(device)


def _not_a_number(tensor: Tensor) -> Tensor:
    """Whether the sum is NaN: so it is where an element is, and seldom else."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:
        return torch.zeros((), dtype=torch.bool, device=tensor.device)
    return tensor.detach().sum().isnan()


def _values(results: Sequence[Tensor]) -> list[int]:
    """Numbers from tensors, with one wait for each device."""
    by_device: dict[torch.device, list[int]] = {}
    for index, result in enumerate(results):
        by_device.setdefault(result.device, []).append(index)
    found = [0] * len(results)
    for indices in by_device.values():
        together = torch.stack([results[index] for index in indices]).tolist()
        for index, value in zip(indices, together, strict=True):
            found[index] = int(value)
    return found

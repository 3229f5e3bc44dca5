"""The results of a group's reductions, and the gradients that are just those.

A program that averages gradients by hand often does so in a copy: one flat tensor of all of them,
or what a functional collective returns. Some elements of the result are kept, and compared with the
same elements of the gradients that the step uses. All must agree up to one positive factor.

Costs one gather of at most `MOST_ELEMENTS` elements for each reduction, and no wait for a device
before the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

MOST_ELEMENTS = 64
LEAST_ELEMENTS = 8
"""The least elements of a tensor: one with fewer, such as a loss or a count, tells nothing by its
values."""
LEAST_DISTINCT = 3
"""The least number of distinct values that are not zero: ones are equal to ones by chance."""
TOLERANCE = 4e-3
"""The tolerance, of the largest element: a division in bfloat16 is as far from one in float32."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Some elements of what a reduction came to, where it was made; `numel` is of all."""

    numel: int
    elements: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Sum:
        return cls(tensor.numel(), _taken(tensor, _places(tensor.numel())))


def is_plain(tensor: Tensor) -> bool:
    """Whether it has a storage with elements that can be read."""
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def may_tell(tensor: Tensor) -> bool:
    """Whether the values of a reduction can tell that gradients came of it."""
    return tensor.is_floating_point() and is_plain(tensor) and tensor.numel() >= LEAST_ELEMENTS


def told(gradients: Sequence[Tensor], sums: Sequence[Sum]) -> set[int]:
    """The places of those gradients that hold what one of the sums came to: each by itself, or
    several in a row, forwards or backwards, as they stand in a flat tensor."""
    by_numel: dict[int, list[Sum]] = {}
    for one in sums:
        by_numel.setdefault(one.numel, []).append(one)
    found: set[int] = set()
    for place, gradient in enumerate(gradients):
        if _is_one_of(by_numel.get(gradient.numel(), ()), [gradient]):
            found.add(place)
    for order in (range(len(gradients)), range(len(gradients) - 1, -1, -1)):
        for row in _rows(gradients, order, by_numel):
            if not found.issuperset(row):
                of_row = [gradients[place] for place in row]
                numel = sum(one.numel() for one in of_row)
                if _is_one_of(by_numel[numel], of_row):
                    found.update(row)
    return found


def _rows(
    gradients: Sequence[Tensor], order: Sequence[int], by_numel: dict[int, list[Sum]]
) -> Iterator[list[int]]:
    """The gradients in a row, two or more, that have as many elements together as a sum has."""
    ends = list(accumulate((gradients[place].numel() for place in order), initial=0))
    last = {end: number for number, end in enumerate(ends)}
    for first, before in enumerate(ends):
        for numel in by_numel:
            after = last.get(before + numel, 0)
            if after > first + 1:
                yield list(order[first:after])


def _is_one_of(sums: Sequence[Sum], gradients: Sequence[Tensor]) -> bool:
    if not sums:
        return False
    elements = _elements(gradients)
    return any(_agree(one.elements.to("cpu", torch.float64), elements) for one in sums)


def _agree(summed: Tensor, elements: Tensor) -> bool:
    """Whether the one is the other, but for one positive factor."""
    distinct = len(set(summed[summed != 0].tolist()))
    if distinct < LEAST_DISTINCT or not (summed.isfinite().all() and elements.isfinite().all()):
        return False
    factor = (summed @ elements) / (summed @ summed)
    apart = (elements - factor * summed).abs().max()
    return bool(factor > 0 and apart <= TOLERANCE * elements.abs().max())


def _places(numel: int) -> list[int]:
    count = min(numel, MOST_ELEMENTS)
    return [number * numel // count for number in range(count)]


def _taken(tensor: Tensor, places: Sequence[int]) -> Tensor:
    with torch.no_grad():
        wanted = torch.tensor(places, device=tensor.device)
        return tensor.detach().reshape(-1).index_select(0, wanted)


def _elements(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the elements at the places of one flat tensor of them all."""
    ends = list(accumulate((one.numel() for one in gradients), initial=0))
    places = _places(ends[-1])
    by_gradient: dict[int, list[int]] = {}
    for place in places:
        number = bisect_right(ends, place) - 1
        by_gradient.setdefault(number, []).append(place - ends[number])
    parts = [_taken(gradients[number], inside) for number, inside in by_gradient.items()]
    return torch.cat([part.to("cpu", torch.float64) for part in parts])

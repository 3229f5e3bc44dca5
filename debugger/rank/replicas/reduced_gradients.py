"""The gradients that a group has summed or averaged, which tell replicas from parts of one model.

A parameter whose gradient was summed up by a group before a step is meant to be the same on all
ranks of that group. Nothing else that ranks do proves it: they may hold shards of one model, train
apart and log an averaged loss, or search for the best of many.

Either the gradient itself was handed to the call, or a copy of it was, alone or with those of other
parameters in one flat tensor, and what came of that is now in the gradients: the values tell
(`told`), up to one factor, since what is summed up is divided, unscaled and clipped.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...record.ops import Pattern, methods_of
from ...record.signature import SUMS, Signature
from ..checks.non_finite import After, Inspect
from ..log.rank_log import report_own_fault
from ..record.describe import tensors_in
from ..record.recorder import GroupRecord, Known
from ..torch_private.operator_calls import WeakStorage
from ..torch_private.training import capturing, current_backward, in_function

METHODS = methods_of(Pattern.ALL_REDUCE)
GIVEN_BY_ONE = "broadcast"
"""The call by which a root hands to all what it has summed up."""
SCATTERED = methods_of(Pattern.REDUCE_SCATTER)
EXCHANGES = methods_of(Pattern.ALL_TO_ALL)
TO_ONE = methods_of(Pattern.REDUCE, Pattern.GATHER)
"""The calls by which a root is given what it sums up. Before the first of these a broadcast makes
weights equal, and the gradient of a bias may be just the next layer's weights."""
MOST_STORAGES = 100_000
"""Kept at once; a program that reduces more between two steps is given up on."""
MOST_SUMS = 4096
"""The last ones of a group are kept."""
MOST_UNMATCHED = 16
"""After so many steps without a gradient among them, sums of one size are taken for activations: to
keep some elements of each takes a part in thirty of a step by tensor parallelism."""
_NEVER = (0, 0, 0)
"""Stands for the count, the address and the elements of what was not reduced."""


signature_of = lru_cache(Signature.from_json)


@dataclass(slots=True)
class GroupTraffic:
    """The calls of one group so far, of tensors that are not small."""

    carried: int = 0
    """How many there were."""
    moved: int = 0
    """Those that it has neither summed up nor broadcast."""
    exchanges: bool = False
    """Whether it makes all-to-alls."""
    is_in_forward: bool = False
    """Whether an autograd function uses it in a forward."""
    forward_is_known: bool = False
    """Whether a step was made since its first one: that tells, and finding out takes long."""
    backward: int = -1
    """The last backward of this process in which it was used, and whether it moved anything then;
    and the storages of what it has summed up."""
    moved_in_backward: bool = False
    summed_in_backward: set[Any] = field(default_factory=set)
    sums_to_one: bool = False
    """Whether a root is given sums."""
    sums: deque[tuple[int, Sum]] = field(default_factory=lambda: deque(maxlen=MOST_SUMS))
    unmatched: Counter[int] = field(default_factory=Counter)
    """By numel, how often sums of so many elements were no gradients, since any sum was one."""


class ReducedGradients:
    """The tensors that the groups of this process have reduced, and when, by a count of its own."""

    def __init__(self) -> None:
        self._reduced: dict[Any, dict[GroupRecord, tuple[int, int, int]]] = {}
        self._keeps_sums = True
        self.count = 0
        """The number of tensors that have been reduced so far."""
        self._last_backward = -1
        self._scattered: dict[Any, set[GroupRecord]] = {}
        """By the storage of one's own part of a sum, the groups that have summed it up."""
        self.traffic: weakref.WeakKeyDictionary[GroupRecord, GroupTraffic] = (
            weakref.WeakKeyDictionary()
        )
        self._messages = 0
        self.peers: set[int | None] = set()
        """The ranks with which this one has exchanged messages."""

    def keep_sums(self) -> None:
        """Keeps again what comes of reductions."""
        self._keeps_sums = True

    def of(self, record: GroupRecord) -> GroupTraffic:
        """Returns what is known of a group: nothing of one that is not looked at."""
        return self.traffic.get(record) or GroupTraffic()

    def exchanges(self, record: GroupRecord) -> int:
        """Returns a count that grows with each exchange by which the ranks of this group may have
        made something equal, but for sums and broadcasts of its own."""
        others = [
            known.carried
            for one, known in self.traffic.items()
            if one is not record and len({*one.ranks} & {*record.ranks}) > 1
        ]
        return sum(others) + self.of(record).moved + self._messages

    def keep_no_sums(self) -> None:
        """Keeps from now on only what was reduced, and not what came of it."""
        self._keeps_sums = False
        for known in self.traffic.values():
            known.sums.clear()

    def before(self, record: GroupRecord) -> Inspect:
        """Returns what looks at the calls of this group."""

        traffic = self.traffic.setdefault(record, GroupTraffic())

        def look(method: str, args: tuple[Any, ...], known: Known, _seq: int) -> After | None:
            signature = signature_of(known.text)
            if signature.peer is not None:
                self._messages += 1
                self.peers.add(signature.peer)
                return None
            if method in EXCHANGES:
                traffic.exchanges = True
            large = any(may_tell(one) for one in tensors_in(args[:2]))
            traffic.carried += large
            if method in TO_ONE:
                traffic.sums_to_one = True
                return None
            scattered = method in SCATTERED
            summed = (scattered or method in METHODS) and signature.reduce_op in SUMS
            tells = summed or method == GIVEN_BY_ONE
            tensors = list(tensors_in(args[0])) if tells else []
            if large:
                traffic.moved += not tells
                self._see_backward(traffic, tensors if summed else None)
                if not (traffic.is_in_forward or traffic.forward_is_known):
                    traffic.is_in_forward = in_function(sys._getframe(1))
            if not tells:
                return None
            if scattered:
                for tensor in tensors if len(self._scattered) < MOST_STORAGES else ():
                    by_storage = WeakStorage(tensor.untyped_storage())
                    self._scattered.setdefault(by_storage, set()).add(record)
                return None
            for tensor in tensors:
                self.count += 1
                if is_plain(tensor) and len(self._reduced) < MOST_STORAGES:
                    by_group = self._reduced.setdefault(WeakStorage(tensor.untyped_storage()), {})
                    by_group[record] = (self.count, tensor.data_ptr(), tensor.numel())
            if not (large and self._keeps_sums and (summed or traffic.sums_to_one)):
                return None
            unmatched = traffic.unmatched
            rest = [one for one in tensors if unmatched[one.numel()] < MOST_UNMATCHED]
            return (lambda: self._keep(traffic, rest)) if rest else None

        return look

    def _see_backward(self, traffic: GroupTraffic, summed: Sequence[Tensor] | None) -> None:
        """`summed`: by the call; None where it has moved something."""
        number = current_backward()
        if number is None or number < 0:
            return
        self._last_backward = number
        if traffic.backward != number:
            traffic.backward, traffic.moved_in_backward = number, False
            traffic.summed_in_backward.clear()
        if summed is None:
            traffic.moved_in_backward = True
        else:
            storages = (WeakStorage(one.untyped_storage()) for one in summed if may_tell(one))
            traffic.summed_in_backward.update(storages)

    def moves_activations(self, record: GroupRecord, gradients: Sequence[Tensor | None]) -> bool:
        """The same, where the group may as well have gathered them, or exchanged them."""
        known = self.of(record)
        moved = known.moved_in_backward and known.backward == self._last_backward
        return moved or known.is_in_forward or self.passes_activations(record, gradients)

    def sums_elsewhere(self, record: GroupRecord, gradient: Tensor | None) -> bool:
        """Whether groups that have no other rank in common with this one have summed up the
        gradient, or the part of it that this rank has."""
        if gradient is None or not is_plain(gradient):
            return False
        storage = WeakStorage(gradient.untyped_storage())
        groups = {*self._reduced.get(storage, ()), *self._scattered.get(storage, ())}
        return any(len({*one.ranks} & {*record.ranks}) == 1 for one in groups)

    def passes_activations(self, record: GroupRecord, gradients: Sequence[Tensor | None]) -> bool:
        """Whether the last backward has summed up on this group what is none of these gradients, of
        all parameters there are: ranks that do so hold parts of one model."""
        known = self.of(record)
        if known.backward != self._last_backward:
            return False
        plain = [one for one in gradients if one is not None and is_plain(one)]
        return not known.summed_in_backward <= {WeakStorage(one.untyped_storage()) for one in plain}

    def _keep(self, traffic: GroupTraffic, tensors: Sequence[Tensor]) -> None:
        """The call is complete: what came of it. The capture of a CUDA graph must not meet that."""
        if capturing():
            return
        try:
            for one in filter(may_tell, tensors):
                spaced = one.detach().reshape(-1)[:: _places(one.numel()).step]
                traffic.sums.append((self.count, Sum(one.numel(), spaced.clone())))
        except Exception as error:
            self.keep_no_sums()
            report_own_fault("sums of gradients", error)

    def groups(self) -> list[GroupRecord]:
        """Returns the groups that have reduced something, in the order of their creation."""
        found = {record for by_group in self._reduced.values() for record in by_group}
        found |= {record for record, known in self.traffic.items() if known.sums}
        return sorted(found, key=lambda record: (record.incarnation, record.name))

    def held(
        self, record: GroupRecord, gradients: Sequence[Tensor | None], since: int = 0
    ) -> list[bool]:
        """Tells for each of these gradients, which are those of one optimiser in its order, whether
        the group has reduced it after the count was `since`."""
        reduced = {
            where[1:]
            for storage, by_group in self._reduced.items()
            if (where := by_group.get(record, _NEVER))[0] > since and not storage.expired()
        }
        traffic = self.of(record)
        known = [one for count, one in traffic.sums if count > since]
        if not (reduced or known):
            return [False] * len(gradients)
        plain = [one if one is not None and is_plain(one) else None for one in gradients]
        found = [one is not None and (one.data_ptr(), one.numel()) in reduced for one in plain]
        rest = [
            (place, one) for place, one in enumerate(plain) if one is not None and not found[place]
        ]
        matched = told([one for _, one in rest], known) if known else ()
        for place in matched:
            found[rest[place][0]] = True
        if matched:
            traffic.unmatched.clear()
        elif rest:
            traffic.unmatched.update({one.numel for one in known})
        return found

    def forget_all(self) -> None:
        """The groups of this process are others from now on."""
        self._reduced.clear()
        for known in self.traffic.values():
            known.sums.clear()
            known.unmatched.clear()
            known.sums_to_one, known.backward = False, -1
        self._scattered.clear()
        self.peers.clear()

    def forget(self) -> None:
        """Leave out what exists no more, after a step."""
        for known in self.traffic.values():
            known.forward_is_known = known.carried > 0
        by_storage: tuple[dict[Any, Any], ...] = (self._reduced, self._scattered)
        for kept in by_storage:
            for storage in [one for one in kept if one.expired()]:
                del kept[storage]


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
    """Some elements of what a reduction came to, where it was made; `numel` is of all.

    A program that averages gradients by hand often does so in a copy: one flat tensor of all of
    them, or what a functional collective returns. Some elements of the result are kept, and
    compared with the same elements of the gradients that the step uses. All must agree up to one
    positive factor. Costs one gather of at most `MOST_ELEMENTS` elements for each reduction, and no
    wait for a device before the step.
    """

    numel: int
    elements: Tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether it has a storage with elements that can be read, and is no DTensor."""
    known = type(tensor) in (Tensor, torch.nn.Parameter)
    return known and tensor.layout is torch.strided and tensor.device.type != "meta"


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
    ends = list(accumulate((one.numel() for one in gradients), initial=0))
    last = {end: number for number, end in enumerate(ends)}
    for first, before in enumerate(ends):
        for numel, of_it in by_numel.items():
            after = last.get(before + numel, 0)
            row = range(first, after)
            if len(row) > 1 and not found.issuperset(row):
                orders = (row, row[::-1])
                if any(_is_one_of(of_it, [gradients[n] for n in order]) for order in orders):
                    found.update(row)
    return found


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


def _places(numel: int) -> range:
    return range(0, numel, -(-numel // MOST_ELEMENTS))


def _elements(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the elements at the places of one flat tensor of them all."""
    ends = list(accumulate((one.numel() for one in gradients), initial=0))
    by_gradient: dict[int, list[int]] = {}
    for place in _places(ends[-1]):
        number = bisect_right(ends, place) - 1
        by_gradient.setdefault(number, []).append(place - ends[number])
    parts = []
    for number, inside in by_gradient.items():
        one = gradients[number].detach().reshape(-1)
        parts.append(one.index_select(0, torch.tensor(inside, device=one.device)))
    return torch.cat([part.to("cpu", torch.float64) for part in parts])

"""Which gradients a group has summed or averaged: what tells replicas from parts of one model.

A parameter whose gradient itself was handed to `all_reduce` (sum or average) before a step is meant
to be the same on all ranks of that group. Nothing else that ranks do proves it: they may hold
shards of one model, train apart and log an averaged loss, or search for the best of many.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from ...record.signature import SUMS, Signature
from ..checks.non_finite import Inspect
from ..record.recorder import GroupRecord, Known

# A weak reference keeps the address of a storage from being given to another one. Torch has no
# types for it.
_Weak: Any = reductions.StorageWeakRef
METHODS = frozenset({"allreduce", "allreduce_coalesced"})
MOST_STORAGES = 100_000
"""Kept at once; a program that reduces more between two steps is given up on."""


@lru_cache
def _sums(text: str) -> bool:
    return Signature.from_json(text).reduce_op in SUMS


class ReducedGradients:
    """What the groups of this process have reduced, and when, by a count of its own."""

    def __init__(self) -> None:
        self._reduced: dict[Any, dict[GroupRecord, tuple[int, int, int]]] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """How many tensors have been reduced so far."""
        return self._count

    def before(self, record: GroupRecord) -> Inspect:
        """What looks at the calls of this group."""

        def look(method: str, args: tuple[Any, ...], known: Known, _seq: int) -> None:
            if method in METHODS and _sums(known.text):
                tensors = args[0]
                for tensor in (tensors,) if isinstance(tensors, Tensor) else tensors:
                    self._add(record, tensor)

        return look

    def _add(self, record: GroupRecord, tensor: Tensor) -> None:
        self._count += 1
        if tensor.layout is not torch.strided or len(self._reduced) >= MOST_STORAGES:
            return
        by_group = self._reduced.setdefault(_Weak(tensor.untyped_storage()), {})
        by_group[record] = (self._count, tensor.data_ptr(), tensor.numel())

    def groups(self) -> list[GroupRecord]:
        """Those that have reduced something that still exists, in the order of their creation."""
        found = {record for by_group in self._reduced.values() for record in by_group}
        return sorted(found, key=lambda record: (record.incarnation, record.name))

    def holds(self, record: GroupRecord, gradient: Tensor | None, since: int = 0) -> bool:
        """Whether the group has reduced just this gradient after the count was `since`."""
        if gradient is None or gradient.layout is not torch.strided:
            return False
        by_group = self._reduced.get(_Weak(gradient.untyped_storage()), {})
        count, pointer, numel = by_group.get(record, (0, 0, 0))
        return count > since and (pointer, numel) == (gradient.data_ptr(), gradient.numel())

    def forget(self) -> None:
        """Leave out what exists no more."""
        for storage in [one for one in self._reduced if one.expired()]:
            del self._reduced[storage]

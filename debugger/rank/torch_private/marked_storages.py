"""Something that is known of memory, kept by storage.

Views of a tensor share it, and a storage that has gone is known by its weak reference, whose
address nobody else gets while it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import Tensor

from .planning import StorageReference, storage_address

_SWEEP_AT = 4096

Mark = TypeVar("Mark")


class MarkedStorages(Generic[Mark]):
    """A mark for each of some storages of this process."""

    def __init__(self) -> None:
        self._marked: dict[int, tuple[StorageReference, Mark]] = {}
        self._sweep_at = _SWEEP_AT

    def __bool__(self) -> bool:
        return bool(self._marked)

    def of(self, tensor: Tensor) -> Mark | None:
        """Returns the mark of the memory of this tensor."""
        found = self._marked.get(storage_address(tensor))
        return None if found is None else found[1]

    def put(self, tensor: Tensor, mark: Mark) -> None:
        """Marks the memory of a tensor."""
        address = storage_address(tensor)
        if not address:
            return
        kept = self._marked.get(address)
        if kept is not None:
            if kept[1] != mark:
                self._marked[address] = (kept[0], mark)
            return
        if len(self._marked) >= self._sweep_at:
            self._marked = {at: one for at, one in self._marked.items() if not one[0].expired()}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._marked))
        self._marked[address] = (StorageReference(tensor.untyped_storage()), mark)

    def drop(self, tensor: Tensor) -> None:
        """Takes the mark away."""
        self._marked.pop(storage_address(tensor), None)

    def alive(self) -> Iterator[Mark]:
        """The marks of those that there still are."""
        return (mark for reference, mark in self._marked.values() if not reference.expired())

"""Which memory of this process holds values that only stand in for those of a real run.

Kept by storage: views of a tensor share it, and a storage that has gone is known by its weak
reference, whose address nobody else gets while it is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from ..torch_private.planning import StorageReference, storage_address

_SWEEP_AT = 4096


class Taint:
    """Of this process's tensors."""

    def __init__(self) -> None:
        self._marked: dict[int, StorageReference] = {}
        self._sweep_at = _SWEEP_AT
        self._everywhere = 0

    def __repr__(self) -> str:
        return f"<Taint of {len(self._marked)} storages>"

    def __bool__(self) -> bool:
        return bool(self._marked)

    def has(self, tensor: Tensor) -> bool:
        """Whether it holds a value that is not known."""
        if self._everywhere:
            return True
        if not self._marked:
            return False
        address = storage_address(tensor)
        return address in self._marked

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Within, nothing counts as known."""
        self._everywhere += 1
        try:
            yield
        finally:
            self._everywhere -= 1

    def add(self, tensor: Tensor) -> None:
        """Its values are not known from now on."""
        address = storage_address(tensor)
        if not address or address in self._marked:
            return
        if len(self._marked) >= self._sweep_at:
            self._sweep()
        self._marked[address] = StorageReference(tensor.untyped_storage())

    def drop(self, tensor: Tensor) -> None:
        """All of its memory holds real values from now on; of a part of a larger one nothing is
        concluded for the rest, which stays as it is."""
        address = storage_address(tensor)
        if address in self._marked and _is_whole(tensor):
            del self._marked[address]

    def _sweep(self) -> None:
        self._marked = {at: one for at, one in self._marked.items() if not one.expired()}
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._marked))


def _is_whole(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()

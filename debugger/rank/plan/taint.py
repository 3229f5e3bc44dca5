"""The memory of this process with values that only stand in for those of a real run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ..torch_private.marked_storages import MarkedStorages
from .origins import OWN, mixed, within


class Taint:
    """The values of this process's tensors that are not known."""

    of_process: ClassVar[Taint]
    """The one for values that another rank has sent."""

    def __init__(self) -> None:
        self._marked: MarkedStorages[bytes] = MarkedStorages()
        self._everywhere = 0
        self.before_first: Callable[[], None] | None = None
        """Called once, before anything in this process is not known."""

    def __repr__(self) -> str:
        return f"<Taint: {self._marked!r}>"

    def __bool__(self) -> bool:
        return bool(self._marked)

    def begin(self) -> None:
        """Begins to follow values: one is about to be there that is not known."""
        first, self.before_first = self.before_first, None
        if first is not None:
            first()

    def has(self, tensor: Tensor) -> bool:
        """Whether it holds a value that is not known."""
        if self._everywhere:
            return True
        return bool(self._marked) and self._marked.of(tensor) is not None

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Counts nothing as known, within."""
        self._everywhere += 1
        try:
            yield
        finally:
            self._everywhere -= 1

    def origin(self, tensor: Tensor) -> bytes | None:
        """Returns what the values came of, which are not known (see `origins`); None where they
        are."""
        found = self._marked.of(tensor)
        return OWN if found is None and self._everywhere else found

    def add(self, tensor: Tensor, origin: bytes = OWN) -> None:
        """Its values are not known from now on, and came of this."""
        if self.before_first is not None:
            self.begin()
        if origin != OWN and not _is_whole(tensor):
            kept = self._marked.of(tensor)
            origin = mixed(origin if kept is None else mixed(kept, origin), within(tensor))
        self._marked.put(tensor, origin)

    def drop(self, tensor: Tensor) -> None:
        """All of its memory holds real values from now on; of a part of a larger one nothing is
        concluded for the rest, which stays as it is."""
        if self._marked.of(tensor) is not None and _is_whole(tensor):
            self._marked.drop(tensor)


def _is_whole(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()

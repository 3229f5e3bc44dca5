"""Graphs of pretended devices: what is captured is done, once, as the capture makes its calls once.

A replay makes no call that the program makes, on a real device neither; it writes what the capture
has written, with values that nobody has here.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

_pools = itertools.count(1)


class Captures(Protocol):
    """A log of what operators write."""

    def capture_begins(self) -> None:
        """Begins to keep what operators write."""

    def capture_ends(self) -> list[Tensor]:
        """Returns what was written since then."""

    def replayed(self, written: list[Tensor]) -> None:
        """This has been written again."""


class FakeGraph:
    """A `torch.cuda.CUDAGraph`."""

    captures: ClassVar[Captures]

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._written: list[Tensor] = []
        self._pool: Any = None

    def __repr__(self) -> str:
        return f"<torch.cuda.CUDAGraph: {len(self._written)} tensors>"

    def capture_begin(self, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._pool = pool or new_pool()
        self.captures.capture_begins()

    def capture_end(self) -> None:
        self._written = self.captures.capture_ends()

    def replay(self) -> None:
        self.captures.replayed(self._written)

    def reset(self) -> None:
        self._written = []

    def pool(self) -> Any:
        return self._pool

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    instantiate = debug_dump = enable_debug_mode = register_generator_state = _nothing


def new_pool() -> tuple[int, int]:
    """A name for the memory of graphs."""
    return (0, next(_pools))


def on_the_cpu() -> None:
    """Makes CUDA graphs run on the CPU in this process."""
    cuda: Any = torch.cuda
    own: Any = torch._C
    own._host_emptyCache = lambda *_: None
    for owner in (cuda, cuda.graphs):
        setattr(owner, "CUDAGraph", FakeGraph)  # noqa: B010
        setattr(owner, "graph_pool_handle", new_pool)  # noqa: B010

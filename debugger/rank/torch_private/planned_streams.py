"""Streams, events and graphs of pretended devices: nothing on them ever has to be waited for.

What is captured into a graph is done, once, as the capture makes its calls once. A replay makes no
call that the program makes, on a real device neither; it writes what the capture has written, with
values that nobody has here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor

from .planned_devices import asked_by_torch

_TORCH = os.path.join(os.path.dirname(str(torch.__file__)), "")
_FRONT = tuple(
    os.path.join(_TORCH, *names)
    for names in (
        ("distributed", "distributed_c10d.py"),
        ("distributed", "c10d_logger.py"),
        ("overrides.py",),
    )
)
"""The places through which calls of a program come."""


class FakeStream:
    """A stream. As a context it is the current one within."""

    current: ClassVar[list[FakeStream]] = []
    """The current ones, the innermost last."""
    numbers: ClassVar[Iterator[int]] = itertools.count(1)
    number = 0

    def __init__(self, device: Any = None, priority: int = 0, **others: Any) -> None:
        del others
        self.device = torch.device("cuda", torch.cuda.current_device())
        if isinstance(device, torch.device) and device.index is not None:
            self.device = device
        self.priority = priority
        self.number = next(self.numbers)
        self.device_index = self.device.index
        self.device_type = 1  # as torch counts them
        self.cuda_stream = self.stream_id = 0

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream=0x0>"

    def __enter__(self) -> FakeStream:
        self.current.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        del error
        if len(self.current) > 1:
            self.current.pop()

    def record_event(self, event: Any = None) -> Any:
        return FakeEvent() if event is None else event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    wait_event = wait_stream = synchronize = _nothing


class FakeEvent:
    """An event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.cuda_event = self.event_id = 0

    def __repr__(self) -> str:
        return "<torch.cuda.Event 0x0>"

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        """In milliseconds, of work that takes no time."""
        del other
        return 1.0

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    record = wait = synchronize = _nothing


def current(*device: Any) -> FakeStream:
    """The one that the program is in."""
    del device
    if not FakeStream.current:
        first = FakeStream()
        first.number = 0
        FakeStream.current.append(first)
    return FakeStream.current[-1]


def number_at(frame: FrameType | None) -> int:
    """The number of the stream of a call that is made below this frame; -1 where torch's own code
    makes it, whose streams are those of the CPU here."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not asked_by_torch(frame):
            return FakeStream.current[-1].number if FakeStream.current else 0
        if file.startswith(_TORCH) and not file.startswith(_FRONT):
            return -1
        frame = frame.f_back
    return -1


def default(*device: Any) -> FakeStream:
    """The one that it began in."""
    current(*device)
    return FakeStream.current[0]


def choose(stream: Any) -> None:
    """Makes this stream the current one."""
    current()
    if stream is not None:
        FakeStream.current.append(stream)


def within(stream: Any) -> Any:
    """A context in which it is in this one."""
    current()
    return contextlib.nullcontext() if stream is None else stream


_pools = itertools.count(1)


class FakeGraph:
    """A `torch.cuda.CUDAGraph`."""

    captures: ClassVar[Any]
    """Keeps what operators write, from `capture_begins()` to `capture_ends()`, which returns it;
    `replayed(written)` tells that this has been written again."""

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

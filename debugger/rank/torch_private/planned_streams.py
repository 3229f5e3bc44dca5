"""Streams and events of pretended devices: nothing on them ever has to be waited for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

import torch

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


class NoStream:
    """The context manager of `with torch.cuda.stream(None)`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> None:
        del error


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
    return NoStream() if stream is None else stream

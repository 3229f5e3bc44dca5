"""Streams that no other call of this process is on.

torch hands out its own in turn, 32 of them for all groups and for the program: two connections on
one of them would wait for each other's messages, in another order on each rank.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from threading import Lock
from typing import Any

import torch

_PRIORITY = -1
"""Above the usual one: others wait for what runs on them."""


class OwnStreams:
    """Made through cuda.core, which nccl4py needs too. They are never destroyed, for torch's
    allocator may still ask about them, but used again."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[Any]] = defaultdict(list)
        self._made: dict[int, Any] = {}
        self._lock = Lock()

    def take(self, index: int) -> Any:
        """Returns a stream of this device, as torch's Stream; the device is current."""
        with self._lock:
            if self._idle[index]:
                return self._idle[index].pop()
        try:
            core: Any = importlib.import_module("cuda.core")
            device = core.Device(index)
            device.set_current()
            options = core.StreamOptions(nonblocking=True, priority=_PRIORITY)
            made = device.create_stream(options=options)
        except Exception:  # a driver or a cuda.core without them: one that may be shared
            cuda: Any = torch.cuda
            return cuda.Stream(index, priority=_PRIORITY)
        external: Any = torch.cuda.ExternalStream
        stream = external(int(made.handle), device=index)
        with self._lock:
            self._made[id(stream)] = (made, stream)
        return stream

    def give_back(self, stream: Any, index: int) -> None:
        """Nothing is on it any more."""
        with self._lock:
            if id(stream) in self._made:
                self._idle[index].append(stream)


OWN_STREAMS = OwnStreams()

"""A lane: a stream of a group on one device, and what must happen around each call on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .device import Device
from .plan import Plan
from .transfers import Transfer
from .work import StreamWork

Issue = Callable[[int, Sequence[Transfer]], None]
"""(cudaStream_t, transfers): put them on the stream."""


class StreamLane:
    """Calls on it run one after another, each after what the caller's stream had to do before."""

    def __init__(self, device: Device, index: int) -> None:
        self.device = device
        self.index = index
        with device.entered(index):
            self.stream = device.stream(index)
            self._handle = device.handle(self.stream)

    def release(self) -> None:
        """Its calls are over, and there will be no others."""
        self.device.give_back(self.stream, self.index)

    def ready(self) -> Any:
        """An event at the end of what the caller's stream has to do so far."""
        event = self.device.event(timed=False)
        event.record(self.device.current_stream(self.index))
        return event

    def launch(
        self,
        work: StreamWork,
        make: Callable[[], Plan],
        issue: Issue,
        tensors: Sequence[Tensor],
        ready: Any = None,
    ) -> None:
        """Put a call on the stream. `make` plans it, with the stream current, so that its copies
        and the room for them are the stream's own; `ready`: see there, by default as of now;
        `tensors`: whose memory must last until the stream is through."""
        device, stream = self.device, self.stream
        with device.entered(self.index):
            captured = device.capturing()
            (self.ready() if ready is None else ready).wait(stream)
            # An event that a graph captures cannot be asked for its time.
            started, ended = device.event(timed=not captured), device.event(timed=not captured)
            with device.on(stream):
                started.record(stream)
                try:
                    for phase in make():
                        if phase.transfers:
                            issue(self._handle, phase.transfers)
                        for then in phase.then:
                            then()
                finally:
                    # Also where some of it failed: what was launched still uses the memory.
                    ended.record(stream)
                    for tensor in tensors:
                        device.keep(tensor, stream)
            work.launched(stream, started, ended, captured)

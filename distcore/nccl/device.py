"""The interface to CUDA, through torch: streams, events, captures, and the time of events.

A stream is torch's Stream, an event torch's Event: `record(stream)`, `wait(stream)`, `query()`,
`elapsed_time(later)` in milliseconds. Tests put a stand-in for `Cuda` in place.
"""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from ..limits import RENEW_NS

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


class Cuda:
    """CUDA as a group uses it; each device has an index. `torch.cuda` is looked up late: a torch
    without CUDA can import this."""

    kind = "cuda"
    """The kind of the group's devices, as in torch.device."""

    def __init__(self) -> None:
        self._cuda: Any = torch.cuda

    def current(self) -> int:
        """The index of this thread's current device."""
        return int(self._cuda.current_device())

    def capability(self, index: int) -> tuple[int, int]:
        major, minor = self._cuda.get_device_capability(index)
        return major, minor

    def entered(self, index: int) -> Any:
        """A context in which this device is current."""
        return self._cuda.device(index)

    def stream(self, index: int) -> Any:
        """A stream of this device that nobody else is on, of high priority: others wait for what
        runs on it."""
        return OWN_STREAMS.take(index)

    def give_back(self, stream: Any, index: int) -> None:
        """Nothing is on it any more, nor will be."""
        OWN_STREAMS.give_back(stream, index)

    def current_stream(self, index: int) -> Any:
        return self._cuda.current_stream(index)

    def on(self, stream: Any) -> Any:
        """A context in which this stream is current."""
        return self._cuda.stream(stream)

    def handle(self, stream: Any) -> int:
        """The cudaStream_t."""
        return int(stream.cuda_stream)

    def event(self, timed: bool) -> Any:
        return self._cuda.Event(enable_timing=timed)

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        return bool(self._cuda.is_current_stream_capturing())

    def watches(self) -> bool:
        """This thread will ask for events while other threads capture graphs, which CUDA by default
        takes for a mistake in the capture; whether it lets it."""
        try:
            runtime: Any = importlib.import_module("cuda.bindings.runtime")  # nccl4py needs it too
            mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            return int(runtime.cudaThreadExchangeStreamCaptureMode(mode)[0]) == 0
        except Exception:  # not there, or of a driver that has it not
            return False

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """The tensor's memory is not given to others before the stream has come this far."""
        tensor.record_stream(stream)

    def future(self, index: int) -> Any:
        """A torch future whose waiters' streams wait for those of whoever completes it."""
        return Future(devices=[torch.device("cuda", index)])


class GpuClock:
    """The clock of one device; used by one thread."""

    def __init__(
        self, device: Cuda, index: int, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._device = device
        self._index = index
        self._now_ns = now_ns
        self._stream: Any = None
        self._known: tuple[Any, int] | None = None
        self._asked: tuple[Any, int] | None = None

    def tick(self) -> None:
        """Renew what is known when it is old. To be called again and again; it never waits."""
        now_ns = self._now_ns()
        if self._asked is not None:
            event, asked_ns = self._asked
            if not event.query():
                return
            # Its own stream is empty: it happened when it was asked for, or was seen just now.
            self._known, self._asked = (event, asked_ns), None
            return
        if self._known is not None and now_ns - self._known[1] < RENEW_NS:
            return
        with self._device.entered(self._index):
            if self._stream is None:
                self._stream = self._device.stream(self._index)
            event = self._device.event(timed=True)
            event.record(self._stream)
        self._asked = (event, self._now_ns())

    def release(self) -> None:
        """Gives its stream back; the clock is not used any more."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._device.give_back(stream, self._index)

    @property
    def known(self) -> bool:
        """Whether it is set: soon after the first `tick`."""
        return self._known is not None

    def span_ns(self, started: Any, ended: Any) -> tuple[int, int] | None:
        """Returns when two events that have happened did so; None while the clock is not set."""
        if self._known is None:
            return None
        known, known_ns = self._known
        start_ns = known_ns + round(float(known.elapsed_time(started)) * 1e6)
        return start_ns, start_ns + max(0, round(started.elapsed_time(ended) * 1e6))

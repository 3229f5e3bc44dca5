"""The interface to CUDA, through torch: streams, events, captures. Tests put a stand-in in place.

A stream is torch's Stream, an event torch's Event: `record(stream)`, `wait(stream)`, `query()`,
`elapsed_time(later)` in milliseconds.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.futures import Future

from .streams import OWN_STREAMS


class Device(Protocol):
    """The kind of devices that a group's tensors are on; each has an index."""

    @property
    def kind(self) -> str:
        """The kind of device, as in torch.device: "cuda"."""

    def current(self) -> int:
        """The index of this thread's current device."""

    def capability(self, index: int) -> tuple[int, int]: ...

    def entered(self, index: int) -> Any:
        """A context in which this device is current."""

    def stream(self, index: int) -> Any:
        """A stream of this device that nobody else is on, of high priority: others wait for what
        runs on it."""

    def give_back(self, stream: Any, index: int) -> None:
        """Nothing is on it any more, nor will be."""

    def current_stream(self, index: int) -> Any: ...

    def on(self, stream: Any) -> Any:
        """A context in which this stream is current."""

    def handle(self, stream: Any) -> int:
        """The cudaStream_t."""

    def event(self, timed: bool) -> Any: ...

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""

    def watches(self) -> bool:
        """This thread will ask for events while other threads capture graphs, which CUDA by default
        takes for a mistake in the capture; whether it lets it."""

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """The tensor's memory is not given to others before the stream has come this far."""

    def future(self, index: int) -> Any:
        """A torch future whose waiters' streams wait for those of whoever completes it."""


class Cuda:
    """See `Device`. `torch.cuda` is looked up late: a torch without CUDA can import this."""

    kind = "cuda"

    def __init__(self) -> None:
        self._cuda: Any = torch.cuda

    def current(self) -> int:
        return int(self._cuda.current_device())

    def capability(self, index: int) -> tuple[int, int]:
        major, minor = self._cuda.get_device_capability(index)
        return major, minor

    def entered(self, index: int) -> Any:
        return self._cuda.device(index)

    def stream(self, index: int) -> Any:
        return OWN_STREAMS.take(index)

    def give_back(self, stream: Any, index: int) -> None:
        OWN_STREAMS.give_back(stream, index)

    def current_stream(self, index: int) -> Any:
        return self._cuda.current_stream(index)

    def on(self, stream: Any) -> Any:
        return self._cuda.stream(stream)

    def handle(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def event(self, timed: bool) -> Any:
        return self._cuda.Event(enable_timing=timed)

    def capturing(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing())

    def watches(self) -> bool:
        try:
            runtime: Any = importlib.import_module("cuda.bindings.runtime")  # nccl4py needs it too
            mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            return int(runtime.cudaThreadExchangeStreamCaptureMode(mode)[0]) == 0
        except Exception:  # not there, or of a driver that has it not
            return False

    def keep(self, tensor: Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def future(self, index: int) -> Any:
        return Future(devices=[torch.device("cuda", index)])

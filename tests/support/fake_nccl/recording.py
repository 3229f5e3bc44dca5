"""CUDA and NCCL that only take down what was asked of them; the test moves the streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.futures import Future

from distcore.base.deadline import Timer


class FakeClock(Timer):
    """Moves when somebody pauses, and when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.on_pause: Any = None

    def now(self) -> float:
        return self.now_s

    def pause(self, pause_s: float) -> None:
        self.now_s += pause_s
        if self.on_pause is not None:
            self.on_pause()


class Stream:
    def __init__(self, device: RecordingDevice, name: str) -> None:
        self.device = device
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Event:
    """Has happened when the test says so: `device.reach(event)`, or at once on the caller's stream
    and on those of clocks."""

    def __init__(self, device: RecordingDevice, name: str, timed: bool) -> None:
        self.device = device
        self.name = name
        self.timed = timed
        self.moment_ms: float | None = None
        self.stream: Any = None

    def __repr__(self) -> str:
        return self.name

    def record(self, stream: Any) -> None:
        self.stream = stream
        self.device.log.append(f"{self} on {stream}")
        if self.device.at_once(stream):
            self.moment_ms = self.device.clock.now_s * 1e3

    def wait(self, stream: Any) -> None:
        self.device.log.append(f"{stream} waits for {self}")

    def query(self) -> bool:
        if self.device.broken is not None:
            raise self.device.broken
        return self.moment_ms is not None

    def elapsed_time(self, later: Event) -> float:
        assert self.timed
        assert later.timed
        assert self.moment_ms is not None
        assert later.moment_ms is not None
        return later.moment_ms - self.moment_ms


class RecordingDevice:
    """See `distcore.nccl.device.Cuda`."""

    kind = "cpu"

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.log: list[str] = []
        self.events: list[Event] = []
        self.streams = 0
        self.captures = False
        self.broken: Exception | None = None
        self.kept: list[int] = []
        self.lanes: set[str] = set()

    def at_once(self, stream: Any) -> bool:
        return str(stream) not in self.lanes

    def aborted(self) -> None:
        """The kernels on all streams have ended, as after an abort of NCCL's, and what came after
        them on the streams has happened."""
        for event in self.events:
            if event.moment_ms is None:
                self.reach(event)

    def reach(self, event: Any, after_s: float = 0.0) -> None:
        """The stream comes to this event."""
        event.moment_ms = (self.clock.now_s + after_s) * 1e3

    def current(self) -> int:
        return 0

    def capability(self, _index: int) -> tuple[int, int]:
        return 8, 0

    def entered(self, _index: int) -> Any:
        return contextlib.nullcontext()

    def stream(self, _index: int) -> Any:
        self.streams += 1
        return Stream(self, f"s{self.streams}")

    def give_back(self, _stream: Any, _index: int) -> None:
        pass

    def current_stream(self, _index: int) -> Any:
        return Stream(self, "caller's")

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.log.append(f"on {stream}")
        yield
        self.log.append(f"off {stream}")

    def handle(self, _stream: Any) -> int:
        return 77

    def event(self, timed: bool) -> Any:
        made = Event(self, f"e{len(self.events) + 1}", timed)
        self.events.append(made)
        return made

    def capturing(self) -> bool:
        return self.captures

    def watches(self) -> bool:
        return True

    def keep(self, tensor: Tensor, stream: Any) -> None:
        self.kept.append(tensor.data_ptr())

    def future(self, _index: int) -> Any:
        return Future[Any]()


class SilentCommunicator:
    """Takes every call and never comes to an end by itself."""

    def __init__(self, results: list[int] | None = None) -> None:
        self.calls: list[str] = []
        self.results = results or []
        self.ended = ""
        self.on_abort: Any = lambda: None

    def get_async_error(self) -> int:
        return self.results.pop(0) if len(self.results) > 1 else (self.results or [0])[0]

    def get_last_error(self) -> str:
        return "the last error"

    def finalize(self) -> None:
        self.calls.append("finalize")

    def destroy(self) -> None:
        self.ended = "destroyed"

    def abort(self) -> None:
        self.on_abort()
        self.ended = "aborted"

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: self.calls.append(name)

"""CUDA's streams and events, without a GPU: everything has happened when it was asked for."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from distcore.nccl.work import StreamLane


class Event:
    def __init__(self) -> None:
        self.moment_s = 0.0

    def record(self, _stream: Any) -> None:
        self.moment_s = time.monotonic()

    def wait(self, _stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.moment_s - self.moment_s) * 1e3


class CpuDevice:
    """See `distcore.nccl.device.Cuda`; its only device is the CPU."""

    kind = "cpu"

    def current(self) -> int:
        return 0

    def capability(self, _index: int) -> tuple[int, int]:
        return 9, 0

    def entered(self, _index: int) -> Any:
        return contextlib.nullcontext()

    def stream(self, _index: int) -> Any:
        return object()

    def give_back(self, _stream: Any, _index: int) -> None:
        pass

    def current_stream(self, _index: int) -> Any:
        return None

    def on(self, _stream: Any) -> Any:
        return contextlib.nullcontext()

    def handle(self, _stream: Any) -> int:
        return 7

    def event(self, timed: bool) -> Any:
        return Event()

    def capturing(self) -> bool:
        return False

    def watches(self) -> bool:
        return True

    def keep(self, _tensor: Tensor, _stream: Any) -> None:
        pass

    def future(self, _index: int) -> Any:
        return Future[Any]()


class ThreadedLane(StreamLane):
    """A lane whose calls run on a thread: the caller of a receive goes on, as with a stream."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    def launch(self, *args: Any) -> None:
        launch = super().launch

        def job() -> None:
            with torch.no_grad():
                launch(*args)

        self._jobs.put(job)

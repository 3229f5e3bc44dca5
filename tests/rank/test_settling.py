"""The end of a process waits for gloo's workers, and only for those that are at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from debugger.rank import settling


@contextmanager
def worker(busy_s: float, name: str = settling._WORKER) -> Iterator[threading.Event]:
    """A thread that looks like gloo's to the system: it works, then it sleeps. The event is set
    when its work is done."""
    started, done, stop = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        started.set()
        deadline = time.monotonic() + busy_s
        while time.monotonic() < deadline and not stop.is_set():
            pass
        done.set()
        stop.wait()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_a_worker_that_runs_is_waited_for() -> None:
    with worker(0.2) as done:
        settling.settle()
        assert done.is_set()


def test_a_worker_that_never_rests_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_LIMIT_S", 0.1)
    with worker(60.0) as done:
        settling.settle()
        assert not done.is_set()


def test_other_threads_are_not_waited_for() -> None:
    with worker(60.0, name="loader") as done:
        settling.settle()
        assert not done.is_set()

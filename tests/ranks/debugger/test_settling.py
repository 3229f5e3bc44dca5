"""The end of a process waits for gloo's workers that are at work, and for the layer's thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.rank.torch_private import gloo
from tests.support import runs

AT_THE_END = """
import atexit
from tests.support import system_threads
name = "distdebug-heart"
atexit.register(lambda: print(system_threads.gone(name)))  # it runs after the layer's own
from distdebug.rank import install
install.install()
while name not in system_threads.names():
    pass
"""


@contextmanager
def worker(busy_s: float, name: str = gloo._WORKER) -> Iterator[threading.Event]:
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


def test_a_worker_that_runs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to get a core."""
    monkeypatch.setattr(gloo, "GLOO_WORKERS_S", 60.0)
    with worker(0.2) as done:
        gloo.settle()
        assert done.is_set()


def test_a_worker_that_never_rests_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "GLOO_WORKERS_S", 0.1)
    with worker(60.0) as done:
        gloo.settle()
        assert not done.is_set()


def test_other_threads_are_not_waited_for() -> None:
    with worker(60.0, name="loader") as done:
        gloo.settle()
        assert not done.is_set()


def test_the_heartbeat_has_ended_when_python_is_finalised(tmp_path: Path) -> None:
    """A thread in torch's code at that moment takes the process with it. The interpreter is one of
    its own, for its end."""
    (tmp_path / "ranks").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END],
        env=runs.environment({"DISTDEBUG_RUN_DIR": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        check=False,
    )
    assert done.stdout.splitlines() == ["True"], done

"""For which of its children a process waits, of real ones: what it is, and where it stands."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from distdebug.supervisor.stacks.evidence import awaited_child, dead_children
from distdebug.supervisor.stacks.stacks import ThreadStack, capture
from tests.support.waiting import until
from tests.unit.supervisor.process_tools import LIMIT_S, pids_in, python

HEAD = """
import multiprocessing, os, signal, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
FORKED = multiprocessing.get_context("fork")

def come(pid):
    with open(sys.argv[1], "a") as file:
        file.write(f"{pid}\\n")

def stands(_=None):
    come(os.getpid())
    signal.pause()

def idle(_=None):
    return None
"""
WAITS = {
    "run": 'come(os.getpid())\nsubprocess.run(["sleep", "300"])',
    "communicate": """
child = subprocess.Popen(["sleep", "300"], stdout=subprocess.PIPE)
come(child.pid)
child.communicate()""",
    "waitpid": "pid = os.fork()\nos.waitpid(pid, 0) if pid else stands()",
    "join": "child = FORKED.Process(target=stands)\nchild.start()\nchild.join()",
    "pool": """
with FORKED.Pool(2) as pool:
    pool.map(idle, range(2), 1)
    pool.apply(stands)""",
    "executor": """
with ProcessPoolExecutor(2, FORKED) as pool:
    pool.submit(stands).result()""",
}
OTHERWISE = {
    "sleeps": """
child = FORKED.Process(target=stands, daemon=True)
child.start()
time.sleep(300)""",
    "a thread's result": """
child = FORKED.Process(target=stands, daemon=True)
child.start()
ThreadPoolExecutor(1).submit(signal.sigwait, [signal.SIGUSR1]).result()""",
    "idle workers": """
results = FORKED.Queue()
pool = FORKED.Pool(2)
pool.map(idle, range(2), 1)
come(os.getpid())
results.get()""",
}


@contextmanager
def waiting(code: str, folder: Path) -> Iterator[tuple[int, list[ThreadStack], int]]:
    """A process that runs the code, its stacks once all threads below it sleep, and who came."""
    script = folder / "rank.py"
    script.write_text(HEAD + "\n" + code)
    came = folder / "pids"
    command = [*python("")[:-2], str(script), str(came)]
    with subprocess.Popen(command, start_new_session=True) as rank:
        try:
            (pid,) = pids_in(came, 1)
            threads: list[ThreadStack] = []

            def settled() -> bool:
                below = psutil.Process(rank.pid).children(recursive=True)
                if not below or any(one.status() != psutil.STATUS_SLEEPING for one in below):
                    return False
                threads[:] = capture([rank.pid])[rank.pid]
                frames = [frame.function for one in threads for frame in one.frames]
                starts = any("_execute_child" in function for function in frames)
                return bool(threads) and not starts and not any(one.active for one in threads)

            until(settled, "all of them sleep", LIMIT_S)
            yield rank.pid, threads, pid
        finally:
            # All at once: a pool starts another worker for one that is killed before it.
            os.killpg(rank.pid, signal.SIGKILL)


@pytest.mark.parametrize("way", WAITS)
def test_it_is_named_with_where_it_stands(way: str, tmp_path: Path) -> None:
    with waiting(WAITS[way], tmp_path) as (rank, threads, pid):
        if way == "run":
            (child,) = psutil.Process(rank).children()
            pid = child.pid
        found = None

        def named() -> bool:
            # All may sleep for a moment on the way to the wait, too.
            nonlocal found
            threads[:] = capture([rank])[rank]
            found = awaited_child(rank, threads, {rank})
            return found is not None

        until(named, "its child is named", LIMIT_S)
        assert found is not None
        said, lines = found
        assert said.startswith(f"its child {pid} (")
        if way in ("run", "communicate"):
            assert said.endswith("(sleep)")
        else:
            assert any(line.startswith("stands (rank.py:") for line in lines)
            assert way == "waitpid" or not any("<module>" in line for line in lines)
        assert awaited_child(rank, threads, {rank, pid}) is None


@pytest.mark.parametrize("way", OTHERWISE)
def test_who_waits_for_something_else_names_none(way: str, tmp_path: Path) -> None:
    with waiting(OTHERWISE[way], tmp_path) as (rank, threads, _):
        assert awaited_child(rank, threads, {rank}) is None


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "(SIGKILL)"),
        ("os._exit(3)", "(exit code 3)"),
        ("os._exit(0)", ""),
    ],
)
def test_a_child_that_failed_is_named_where_its_queue_is_read(
    end: str, said: str, tmp_path: Path
) -> None:
    code = f"""
def dies():
    come(os.getpid())
    {end}

results, child = FORKED.Queue(), FORKED.Process(target=dies)
child.start()
results.get()"""
    script = tmp_path / "rank.py"
    script.write_text(HEAD + code)
    came = tmp_path / "pids"
    command = [*python("")[:-2], str(script), str(came)]
    with subprocess.Popen(command, start_new_session=True) as rank:
        try:
            (pid,) = pids_in(came, 1)
            until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it ends", LIMIT_S)
            threads: list[ThreadStack] = []

            def reads() -> bool:
                threads[:] = capture([rank.pid])[rank.pid]
                return any(frame.function.endswith("recv_bytes") for frame in threads[0].frames)

            until(reads, "it reads the queue", LIMIT_S)
            found = dead_children(rank.pid, threads)
            assert [one.partition(" (")[0] for one in found] == [f"its child {pid}"] * bool(said)
            assert all(one.endswith(f"has ended {said}") for one in found)
        finally:
            os.killpg(rank.pid, signal.SIGKILL)

"""Stacks of real processes in every state, by each of the three ways."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distdebug.supervisor.stacks import stacks
from distdebug.supervisor.stacks.stack_tree import render, waits_for_lock
from distdebug.supervisor.stacks.stacks import ThreadStack, parse_faulthandler
from distdebug.system.proc import read_stat
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(autouse=True)
def _crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is to write its stacks may be given no core for long."""
    monkeypatch.setattr(stacks, "OWN_STACK_S", 45.0)


def capture(pids: Iterable[int], **more: Any) -> dict[int, list[ThreadStack]]:
    return stacks.capture(pids, **{"timeout_s": 45.0, **more})


PROGRAM = """
import faulthandler, functools, multiprocessing, os, queue, re, signal, sys, threading, time

lock = threading.Lock()
how, directory = sys.argv[1:]
path = f"{directory}/{os.getpid()}.txt"
faulthandler.register(signal.SIGRTMAX - 4, open(path, "a"), all_threads=True)
# Said within the function that the stack must show, and by nothing that has a frame of its own.
ready = functools.partial(os.open, f"{directory}/ready", os.O_CREAT)

def spin():
    ready()
    re.match(r"(a+)+$", "a" * 60 + "b")

def with_lock():
    ready()
    with lock:
        pass

def among_threads():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    ready()
    with lock:
        pass

def acquire():
    ready()
    lock.acquire()

def take():
    ready()
    queue.Queue().get()

def join():
    ready()
    thread = threading.Thread(target=time.sleep, args=(600,), name="child", daemon=True)
    thread.start()
    thread.join()

def compute():
    ready()
    total = 0
    while True:
        total += 1

def sleep():
    ready()
    time.sleep(600)

lock.acquire()
globals()[how]()
"""


Starter = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    started: list[subprocess.Popen[bytes]] = []
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)

    def begin(how: str) -> subprocess.Popen[bytes]:
        (tmp_path / "ready").unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", str(script), how, str(tmp_path)]
        process = subprocess.Popen(command)
        started.append(process)
        until((tmp_path / "ready").exists, what=f"{how} began")
        busy = how in ("spin", "compute")
        until(lambda: (stat := read_stat(process.pid)) and (busy or stat.state == "S"))
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def main_thread(threads: list[ThreadStack]) -> ThreadStack:
    (found,) = [one for one in threads if one.name == "MainThread"]
    return found


def functions(thread: ThreadStack) -> list[str]:
    return [frame.function for frame in thread.frames]


def test_several_processes_at_once_with_line_and_state(start: Starter) -> None:
    spinner, sleeper = start("spin"), start("sleep")
    until(lambda: main_thread(capture([spinner.pid])[spinner.pid]).holds_gil)
    found = capture([spinner.pid, sleeper.pid])
    spins, sleeps = main_thread(found[spinner.pid]), main_thread(found[sleeper.pid])
    assert spins.holds_gil
    assert functions(spins)[-2:] == ["spin", "<module>"]
    assert sleeps.frames[0].function == "sleep"
    assert Path(sleeps.frames[0].file).name == "train.py"
    assert PROGRAM.splitlines()[sleeps.frames[0].line - 1].strip() == "time.sleep(600)"
    assert (sleeps.holds_gil, sleeps.active, sleeps.source) == (False, False, "py-spy")
    assert "sleep" in sleeps.wait


def test_a_stopped_process_does_not_hang_the_capture(start: Starter) -> None:
    process = start("compute")
    process.send_signal(19)
    until(lambda: (stat := read_stat(process.pid)) and stat.state == "T")
    for native in (False, True):
        (thread,) = capture([process.pid], native=native)[process.pid]
        assert thread.frames[0].function == "compute"
    assert "[stopped" in render({0: [thread]})


def test_native_frames_on_request(start: Starter) -> None:
    process = start("with_lock")
    thread = main_thread(capture([process.pid], native=True)[process.pid])
    if not any(frame.native for frame in thread.frames):
        pytest.skip("py-spy may not pause processes here")
    assert "with_lock" in functions(thread)
    assert any("lock" in frame.function for frame in thread.frames if frame.native)
    assert waits_for_lock(thread)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("with_lock", True),
        ("among_threads", True),
        ("acquire", True),
        ("take", True),
        ("join", True),
        ("sleep", False),
        ("spin", False),
        ("compute", False),
    ],
)
def test_a_lock_is_told_from_work_and_sleep(start: Starter, how: str, expected: bool) -> None:
    process = start(how)
    until(lambda: how in functions(main_thread(capture([process.pid])[process.pid])))
    if expected:
        until(lambda: waits_for_lock(main_thread(capture([process.pid])[process.pid])))
    else:
        assert not waits_for_lock(main_thread(capture([process.pid])[process.pid]))


def test_without_py_spy_the_process_is_asked(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    process = start("spin")  # also while the GIL is held
    problems: list[str] = []
    found = capture([process.pid], directory=tmp_path, problems=problems)
    thread = main_thread(found[process.pid])
    assert functions(thread)[-2:] == ["spin", "<module>"]
    assert thread.source == "faulthandler"
    assert problems == [f"py-spy cannot read process {process.pid}: it is not installed"]


def test_who_does_not_listen_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    with subprocess.Popen(["sleep", "600"]) as process:
        until(lambda: (stat := read_stat(process.pid)) and stat.state == "S")
        (tmp_path / f"{process.pid}.txt").touch()
        (thread,) = capture([process.pid], directory=tmp_path)[process.pid]
        assert process.poll() is None, "the signal would have killed it"
        process.kill()
    assert (thread.source, thread.name) == ("proc", "MainThread")
    assert "waits in" in thread.frames[0].function


def test_what_is_not_python_and_what_has_gone() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        problems: list[str] = []
        (thread,) = capture([process.pid], problems=problems)[process.pid]
        assert thread.source == "proc"
        assert problems[0].startswith(f"py-spy cannot read process {process.pid}: ")
        process.kill()
    assert capture([process.pid]) == {process.pid: []}
    assert capture([]) == {}


def test_no_time_left_still_gives_something(start: Starter) -> None:
    process = start("sleep")
    problems: list[str] = []
    (thread,) = capture([process.pid], timeout_s=0, problems=problems)[process.pid]
    assert thread.source == "proc"
    assert "no time was left" in problems[0]


def test_a_faulthandler_dump_is_parsed_and_cleaned() -> None:
    text = (
        "Fatal Python error: noise\n"
        "Thread 0x00007f4ab27066c0 [loader] (most recent call first):\n"
        '  File "/a b/x.py", line 3 in wait\n'
        '  File "threading.py", line ??? in _bootstrap\n'
        "\n"
        "Current thread 0x00007f4ab3a53b80 (most recent call first):\n"
        '  File "/tmp/\x1b[2J.py", line 13 in <module>\n'
        "  ...\n"
        "Thread 0x1 (most recent call first):\n  <no Python frame>\n"
    )
    loader, main, bare = parse_faulthandler(42, text)
    assert (loader.name, loader.native_id, functions(loader)) == (
        "loader",
        0,
        ["wait", "_bootstrap"],
    )
    assert loader.frames[0].file == "/a b/x.py"
    assert loader.frames[1].line == 0
    assert (main.name, main.native_id) == ("MainThread", 42)
    assert main.frames[0].file == "/tmp/\\x1b[2J.py"
    assert bare.frames == ()

"""Looking where the threads stand never stops the process."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from distdebug.rank.record import frames

LIMIT_S = 60
PROGRAM = """
import gc, sys, threading, time
sys.path.insert(0, {root!r})
from distdebug.rank.record.frames import of_other_threads

under_way, over = threading.Event(), threading.Event()

class Knot:
    def __init__(self):
        self.itself = self

    def __del__(self):
        under_way.set()
        time.sleep(0.2)  # lets go of the GIL, as torch does when it frees a tensor

def park():
    over.wait()

def look():
    under_way.wait()
    assert threading.main_thread().ident in of_other_threads()

gc.disable()
# Each has a frame that nobody has asked for: as many new objects as it takes to start a collection.
threads = [threading.Thread(target=park) for _ in range(50)]
threads.append(threading.Thread(target=look))
for thread in threads:
    thread.start()
gc.collect()
Knot()
gc.set_threshold(20)
gc.enable()
found = of_other_threads()
assert all(thread.ident in found for thread in threads), found
assert gc.isenabled()
under_way.set()
over.set()
for thread in threads:
    thread.join()
print("over")
"""


def test_garbage_that_lets_go_of_the_gil(tmp_path: Path) -> None:
    """Not the suite's own process: where this fails, it stands still."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(root=str(Path(__file__).resolve().parents[4])))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


class Tensor:
    """Something that a step of training makes, and drops at its end."""


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("looks", [frames.of_other_threads, lambda: frames.of_thread(1)])
def test_what_was_looked_at_is_freed_at_its_end(looks: Callable[[], object], on: bool) -> None:
    """The function in which a thread stood has returned: what it had is no more, without a
    garbage collection (torch 2.11: an old DDP that is kept goes on to hear of gradients)."""
    made: list[weakref.ref[Tensor]] = []
    stands, over = threading.Event(), threading.Event()

    def step() -> None:
        tensor = Tensor()
        made.append(weakref.ref(tensor))
        stands.set()
        over.wait()

    was, thresholds = gc.isenabled(), gc.get_threshold()
    thread = threading.Thread(target=step)
    try:
        gc.set_threshold(0)  # no collection, though it is on
        gc.enable() if on else gc.disable()
        thread.start()
        assert stands.wait(LIMIT_S)
        looks()
        assert made[0]() is not None
    finally:
        over.set()
        thread.join()
        kept = made[0]()
        gc.set_threshold(*thresholds)
        gc.enable() if was else gc.disable()
    assert kept is None


def test_each_other_thread_is_seen_and_not_the_one_that_looks() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        found = frames.of_other_threads()
        assert thread.ident in found
        assert threading.get_ident() not in found
        assert frames.of_thread(threading.get_ident()) is sys._getframe()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_left_as_it_was(on: bool) -> None:
    was = gc.isenabled()
    try:
        gc.enable() if on else gc.disable()
        assert frames.of_thread(threading.get_ident()) is not None
        assert frames.of_thread(None) is None
        assert gc.isenabled() is on
    finally:
        gc.enable() if was else gc.disable()


def test_no_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("the collector is not touched")

    def none_left() -> None:
        raise MemoryError

    first, _, last = frames._WITHOUT_GARBAGE_COLLECTION
    steps = (first, frames.partial(none_left), last)
    monkeypatch.setattr(frames, "_WITHOUT_GARBAGE_COLLECTION", steps)
    assert gc.isenabled()
    with pytest.raises(MemoryError):
        frames.of_other_threads()
    assert gc.isenabled()


def test_nobody_looks_past_it() -> None:
    root = Path(frames.__file__).resolve().parents[3]
    files = [path for name in ("debugger", "distcore") for path in (root / name).rglob("*.py")]
    users = {path.name for path in files if "_current_frames" in path.read_text()}
    assert users == {"frames.py"}


RETURNS = """
import gc, sys, threading
sys.path.insert(0, {root!r})
from distdebug.rank.record import frames

there, returns = threading.Event(), threading.Event()

def deep(left):
    if left:
        return deep(left - 1)
    there.set()
    while not returns.is_set():
        pass

thread = threading.Thread(target=deep, args=(300,))

class Knot:
    def __init__(self):
        self.itself = self

    def __del__(self):
        returns.set()
        thread.join()

caller = {caller}
gc.disable()
thread.start()
there.wait()
frame = frames.of_thread(thread.ident)
Knot()
gc.set_threshold(1)
gc.enable()
above = caller(frame)
gc.collect()
assert above.f_code.co_name == "deep" and above.f_back.f_code.co_name == "deep"
assert gc.isenabled() and not thread.is_alive()
print("over")
"""


@pytest.mark.parametrize("caller", ["frames.caller", "lambda frame: frame.f_back"])
def test_a_thread_that_returns_meanwhile(caller: str, tmp_path: Path) -> None:
    """From the frame at whose caller another thread looks: Python 3.11 collects garbage between
    finding that and making an object of it, and whatever lets go of the GIL then lets it return."""
    script = tmp_path / "program.py"
    root = str(Path(__file__).resolve().parents[4])
    script.write_text(RETURNS.format(root=root, caller=caller))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    crashes = caller != "frames.caller" and sys.version_info[:2] == (3, 11)
    expected = (-signal.SIGSEGV, "") if crashes else (0, "over\n")
    assert (done.returncode, done.stdout) == expected, done.stderr


def test_callers_to_the_end() -> None:
    frame = frames.of_thread(threading.get_ident())
    found = []
    while frame is not None:
        found.append(frame)
        assert frames.caller(frame) is frame.f_back
        frame = frames.caller(frame)
    assert found[0].f_code.co_name == "test_callers_to_the_end"
    assert len(found) > 3
    gc.disable()  # as a program may
    try:
        assert frames.caller(found[0]) is found[1]
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("how", ["join", "result", "loop"])
def test_which_thread_another_one_waits_for(how: str, on: bool) -> None:
    over = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(over.wait)
        (worker,) = pool._threads
        bodies: dict[str, Callable[[], object]] = {
            "join": worker.join,
            "result": future.result,
            "loop": lambda: asyncio.run(later(future)),
        }
        waits = threading.Thread(target=bodies[how])
        was = gc.isenabled()
        try:
            gc.enable() if on else gc.disable()
            waits.start()
            while frames.awaited(frames.of_thread(waits.ident)) != worker.ident:
                pass
            assert frames.awaited(frames.of_thread(worker.ident)) is None
            assert frames.awaited(None) is None
            assert gc.isenabled() is on
            if how == "loop":  # two threads work: nobody can tell which of them is waited for
                begun = threading.Event()
                pool.submit(lambda: (begun.set(), over.wait()))
                assert begun.wait(LIMIT_S)
                assert frames.awaited(frames.of_thread(waits.ident)) is None
        finally:
            over.set()
            pool.shutdown()
            waits.join()
            gc.enable() if was else gc.disable()


async def later(future: Future[object]) -> None:
    await asyncio.wrap_future(future)

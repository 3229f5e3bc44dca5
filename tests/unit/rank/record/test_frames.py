"""Looking where the threads stand never stops the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from debugger.rank.record import frames

LIMIT_S = 60
PROGRAM = """
import gc, sys, threading, time
sys.path.insert(0, {root!r})
from debugger.rank.record.frames import of_all_threads

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
    assert threading.get_ident() in of_all_threads()

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
found = of_all_threads()
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
        frames.of_all_threads()
    assert gc.isenabled()


def test_nobody_looks_past_it() -> None:
    root = Path(frames.__file__).resolve().parents[3]
    files = [path for name in ("debugger", "distcore") for path in (root / name).rglob("*.py")]
    users = {path.name for path in files if "_current_frames" in path.read_text()}
    assert users == {"frames.py"}


def test_no_collection_while_frames_are_gone_through() -> None:
    waits_anyway = sys.version_info >= (3, 12)
    with frames.without_collection():
        assert gc.isenabled() is waits_anyway
        assert frames.of_all_threads()
    assert gc.isenabled()
    gc.disable()  # as a program may
    try:
        with frames.without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

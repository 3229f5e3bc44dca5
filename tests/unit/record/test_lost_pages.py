"""A file that is cut short while it is mapped ends nobody who keeps it; all else does as before.

Each body runs in a process of its own, which a lost page ends.
"""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the handler is for x86-64 alone"
)
START = """
import faulthandler, mmap, os, signal, sys, threading
from distdebug.record import lost_pages

def mapped(name, write=True):
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, 5 * 4096)
    os.pwrite(descriptor, b"a" * 5 * 4096, 0)
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    return mmap.mmap(descriptor, 5 * 4096, prot=prot)

"""


def end_of(body: str, tmp_path: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", START + body],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("write", [True, False])
def test_a_lost_page_is_empty(write: bool, tmp_path: Path) -> None:
    body = f"""
record = mapped("one", {write})
lost_pages.keep(record)
os.truncate("one", 4096 + 10)
assert record[:3] == b"aaa"
assert record[2 * 4096:2 * 4096 + 3] == bytes(3)
if {write}:
    record[4 * 4096:4 * 4096 + 3] = b"new"
    assert record[4 * 4096:4 * 4096 + 4] == b"new\\0"
print("alive", lost_pages.lost_pages())
"""
    assert end_of(body, tmp_path) == (0, f"alive {1 + write}\n")


def test_one_that_is_not_kept(tmp_path: Path) -> None:
    body = """
kept, other = mapped("kept"), mapped("other")
lost_pages.keep(kept)
os.truncate("other", 0)
print("now", flush=True)
other[0]
"""
    assert end_of(body, tmp_path) == (-signal.SIGBUS, "now\n")


def test_one_that_was_kept_and_is_gone(tmp_path: Path) -> None:
    """Another file may be mapped at its place by then."""
    body = """
kept = mapped("kept")
lost_pages.keep(kept)
del kept
second, other = mapped("second"), mapped("other")
lost_pages.keep(second)
os.truncate("second", 0)
assert second[0] == 0
os.truncate("other", 0)
print("now", flush=True)
other[0]
"""
    assert end_of(body, tmp_path) == (-signal.SIGBUS, "now\n")


@pytest.mark.parametrize("kept", [0, 300])
def test_the_signal_from_somebody_else(kept: int, tmp_path: Path) -> None:
    body = f"""
records = [mapped("kept") for _ in range({kept})]
for record in records:
    lost_pages.keep(record)
assert signal.getsignal(signal.SIGBUS) is signal.SIG_DFL
os.kill(os.getpid(), signal.SIGBUS)
print("alive")
"""
    assert end_of(body, tmp_path) == (-signal.SIGBUS, "")


def test_who_handled_it_before_still_does(tmp_path: Path) -> None:
    body = """
faulthandler.enable()
kept, other = mapped("kept"), mapped("other")
lost_pages.keep(kept)
os.truncate("kept", 0)
assert kept[0] == 0
os.truncate("other", 0)
other[0]
"""
    code, said = end_of(body, tmp_path)
    assert code == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in said
    body = """
seen = []
signal.signal(signal.SIGBUS, lambda *_: seen.append(1))
lost_pages.keep(mapped("kept"))
os.kill(os.getpid(), signal.SIGBUS)
print(seen)
"""
    assert end_of(body, tmp_path) == (0, "[1]\n")


def test_who_handles_it_from_now_on_is_asked_for_the_rest(tmp_path: Path) -> None:
    body = """
kept, other = mapped("kept"), mapped("other")
lost_pages.keep(kept)
lost_pages.put_behind(faulthandler.enable)
os.truncate("kept", 0)
assert kept[0] == 0
os.truncate("other", 0)
other[0]
"""
    code, said = end_of(body, tmp_path)
    assert code == -signal.SIGBUS
    assert said.count("Fatal Python error: Bus error") == 1


def test_threads_and_forked_children(tmp_path: Path) -> None:
    body = """
records = [mapped(f"{number}") for number in range(8)]
for record in records:
    lost_pages.keep(record)
for number in range(8):
    os.truncate(f"{number}", 0)
def read(record):
    for at in range(0, 5 * 4096, 512):
        assert record[at] == 0
threads = [threading.Thread(target=read, args=(record,)) for record in records[:4]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = os.fork()
if not child:
    [read(record) for record in records[4:]]
    os._exit(lost_pages.lost_pages() - 20)
print(lost_pages.lost_pages(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert end_of(body, tmp_path) == (0, "20 20\n")


def test_a_forked_child_that_drops_the_mapping(tmp_path: Path) -> None:
    body = """
record = mapped("one")
lost_pages.keep(record)
child = os.fork()
if not child:
    del record
    os._exit(0)
os.waitpid(child, 0)
os.truncate("one", 0)
print(record[0])
"""
    assert end_of(body, tmp_path) == (0, "0\n")


def test_where_it_cannot_be_done_nothing_is(tmp_path: Path) -> None:
    body = """
import platform
platform.machine = lambda: "sparc"
record = mapped("one")
lost_pages.keep(record)
assert record[:3] == b"aaa"
os.truncate("one", 0)
record[0]
"""
    assert end_of(body, tmp_path) == (-signal.SIGBUS, "")

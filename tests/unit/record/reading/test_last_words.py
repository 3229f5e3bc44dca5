"""What a process writes of itself as a fatal signal ends it is read as what it is, and of it alone.

Each body runs in a process of its own, which a signal ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from distdebug.record.reading.last_words import WrittenLastWords, last_words
from distdebug.record.requests.supervision import dump_path
from distdebug.record.snapshot import Process

TEXT = """\
Thread 0x00007f3b4c000640 (most recent call first):
  File "/app/asked.py", line 3 in asked_for_before

Fatal Python error: Segmentation fault

Thread 0x00007f3b4d000640 (most recent call first):
  File "/app/train.py", line 9 in other_thread

Current thread 0x00007f3b4e000740 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/venv/lib/python3.11/site-packages/codec/read.py", line 5 in read
  File "/app/data\x1b[2J.py", line 12 in decode
  File "/app/train.py", line 20 in main

Extension modules: numpy.core, torch._C (total: 2)
"""
START = """
import ctypes, faulthandler, os, pathlib, signal, sys, threading
from distdebug.rank.process.last_words import CrashWriter

stacks = pathlib.Path(sys.argv[1])

def crash():
    os.abort()
"""


def test_the_thread_that_crashed_counts(tmp_path: Path) -> None:
    dump_path(tmp_path, 7).write_text(TEXT)
    said = last_words(tmp_path, 7, signal.SIGSEGV)
    assert said is not None
    assert str(said.site) == "/app/data\\x1b[2J.py:12 in decode"
    assert said.stack[0] == "/app/train.py:20 in main"
    assert said.stack[-1].endswith("ctypes/__init__.py:519 in string_at")
    assert len(said.stack) == 4


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (TEXT, signal.SIGTERM),  # the launcher's, later
        (TEXT, signal.SIGABRT),  # written of another end
        (TEXT.replace("Current thread", "Thread"), signal.SIGSEGV),  # one of no Python
        (TEXT.partition("Current")[0], signal.SIGSEGV),  # cut off
        ("", signal.SIGSEGV),
        (TEXT, 4711),
    ],
)
def test_what_is_not_known_is_not_told(text: str, number: int, tmp_path: Path) -> None:
    dump_path(tmp_path, 7).write_text(text)
    assert last_words(tmp_path, 7, number) is None


def test_they_tell_the_signal_that_nobody_else_has_told(tmp_path: Path) -> None:
    """As of a rank of mpiexec, which took its status before anybody had looked."""
    dump_path(tmp_path, 7).write_text(TEXT)
    gone = Process(alive=False, ended_ns=3)
    process, said = WrittenLastWords(tmp_path).of(7, 1, gone)
    assert process == replace(gone, signal=signal.SIGSEGV)
    assert said == last_words(tmp_path, 7, signal.SIGSEGV)


@pytest.mark.parametrize(
    "process",
    [
        Process(alive=False, exit_code=3, ended_ns=3),  # it caught the signal
        Process(alive=False, signal=signal.SIGTERM, ended_ns=3),
        Process(alive=False),  # of another host, where another has this number
        Process(alive=True),
    ],
)
def test_what_others_know_of_its_end_they_do_not_change(process: Process, tmp_path: Path) -> None:
    dump_path(tmp_path, 7).write_text(TEXT)
    assert WrittenLastWords(tmp_path).of(7, 1, process) == (process, None)


def test_one_that_is_gone_and_has_said_nothing(tmp_path: Path) -> None:
    """Stacks that were asked for are no last words."""
    dump_path(tmp_path, 7).write_text(TEXT.partition("Fatal")[0])
    gone = Process(alive=False, ended_ns=3)
    assert WrittenLastWords(tmp_path).of(7, 1, gone) == (gone, None)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    assert last_words(tmp_path, 7, signal.SIGSEGV) is None
    dump_path(tmp_path, 7).symlink_to("/etc/passwd")
    assert last_words(tmp_path, 7, signal.SIGSEGV) is None
    dump_path(tmp_path, 8).mkdir()
    assert last_words(tmp_path, 8, signal.SIGSEGV) is None


@dataclass(frozen=True)
class Ended:
    pid: int
    code: int
    out: str
    err: str


def ended(body: str, stacks: Path, *options: str) -> Ended:
    process = subprocess.Popen(
        [sys.executable, *options, "-c", START + body, str(stacks)],
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=60)
    return Ended(process.pid, process.returncode, out, err)


def test_a_crash_is_written(tmp_path: Path) -> None:
    process = ended("CrashWriter(stacks).begin()\ncrash()\n", tmp_path)
    assert process.code == -signal.SIGABRT
    assert dump_path(tmp_path, process.pid).read_text().startswith("Fatal Python error: Aborted")
    assert (process.out, process.err) == ("", "")  # to the program's eyes nothing has changed
    said = last_words(tmp_path, process.pid, signal.SIGABRT)
    assert said is not None
    assert said.stack[-1].endswith("in crash")


def test_a_child_s_crash_is_not_its_parent_s(tmp_path: Path) -> None:
    body = """
CrashWriter(stacks).begin()
child = os.fork()
if child == 0:
    crash()
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGABRT
"""
    process = ended(body, tmp_path)
    assert process.code == 0, process.err
    assert dump_path(tmp_path, process.pid).read_text() == ""


def test_a_child_that_becomes_a_rank_has_words_of_its_own(tmp_path: Path) -> None:
    body = """
words = CrashWriter(stacks)
words.begin()
child = os.fork()
if child == 0:
    words.begin()
    crash()
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGABRT
print(child)
"""
    process = ended(body, tmp_path)
    assert process.code == 0, process.err
    assert dump_path(tmp_path, process.pid).read_text() == ""
    assert last_words(tmp_path, int(process.out), signal.SIGABRT) is not None


@pytest.mark.parametrize("most", [32, 1024])
def test_a_file_of_the_program_gets_nothing_of_it(most: int, tmp_path: Path) -> None:
    """It has closed all descriptors that it did not open, and has opened its own."""
    body = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
CrashWriter(stacks).begin()
os.closerange(3, {most})
files = [open(stacks / f"checkpoint-{{number}}", "w") for number in range(20)]
crash()
"""
    process = ended(body, tmp_path)
    assert process.code == -signal.SIGABRT, process.err
    assert [file.read_text() for file in tmp_path.glob("checkpoint-*")] == [""] * 20


@pytest.mark.parametrize("handler", ["-Xfaulthandler", "own"])
def test_a_program_keeps_its_own_handler(handler: str, tmp_path: Path) -> None:
    own = handler == "own"  # one of C, as a Java machine has
    body = (
        """
ran = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os._exit(5))
ctypes.CDLL(None).signal(int(signal.SIGSEGV), ran)
"""
        if own
        else ""
    )
    body += "CrashWriter(stacks).begin()\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    process = ended(body, tmp_path, *([] if own else [handler]))
    assert process.code == (5 if own else -signal.SIGSEGV)
    assert ("Segmentation fault" in process.err) != own
    assert dump_path(tmp_path, process.pid).read_text() == ""


def test_a_lost_page_is_no_crash(tmp_path: Path) -> None:
    body = """
import mmap
from distdebug.record import lost_pages

descriptor = os.open(stacks / "record", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(descriptor, 5 * 4096)
record = mmap.mmap(descriptor, 5 * 4096)
lost_pages.keep(record)
CrashWriter(stacks).begin()
os.ftruncate(descriptor, 4096)
if lost_pages._made is not None:  # as everywhere but on x86-64
    assert record[3 * 4096] == 0
    assert lost_pages.lost_pages() == 1
"""
    process = ended(body, tmp_path)
    assert process.code == 0, process.err
    assert dump_path(tmp_path, process.pid).read_text() == ""


@pytest.mark.parametrize("kept", [True, False])
def test_a_lost_page_of_the_program_s_own_file_is_a_crash(kept: bool, tmp_path: Path) -> None:
    body = f"""
import mmap
from distdebug.record import lost_pages

def mapped(name):
    descriptor = os.open(stacks / name, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, 5 * 4096)
    return mmap.mmap(descriptor, 5 * 4096)

def read_batch():
    return data[3 * 4096]

record = mapped("record")
if {kept}:
    lost_pages.keep(record)
data = mapped("data")
CrashWriter(stacks).begin()
os.truncate(stacks / "data", 4096)
read_batch()
"""
    process = ended(body, tmp_path)
    assert process.code == -signal.SIGBUS
    said = last_words(tmp_path, process.pid, signal.SIGBUS)
    assert said is not None
    assert said.stack[-1].endswith("in read_batch")

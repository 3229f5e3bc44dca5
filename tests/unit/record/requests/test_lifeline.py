"""Who is tied to a supervisor ends with it, by the kernel's hand; nobody else does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.record.requests.lifeline import NAME, Lifeline, tie
from tests.support import runs

TIED = """
import os, sys
from distdebug.record.requests.lifeline import tie
print(tie(sys.argv[1]), flush=True)
if os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
HOLDS = """
import sys
from distdebug.record.requests.lifeline import Lifeline
with Lifeline() as lifeline:
    lifeline.begin(sys.argv[1])
    print("held", flush=True)
    sys.stdin.read()
"""


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=runs.environment(),
        cwd=Path(__file__).parents[3],
    )


def word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("killed", [True, False])
def test_a_stopped_process_ends_with_the_one_it_is_tied_to(killed: bool, tmp_path: Path) -> None:
    holder = started(HOLDS, tmp_path)
    assert word(holder) == "held"
    tied = started(TIED, tmp_path)
    assert word(tied) == "True"
    child = int(word(tied))
    other = os.pidfd_open(child)
    tied.send_signal(signal.SIGSTOP)
    assert tied.poll() is None, "nothing happens to it as long as the other lives"
    if killed:
        holder.kill()
    else:
        holder.communicate()
    assert tied.wait(20) == -signal.SIGKILL
    assert not select.select([other], [], [], 0)[0], "what it has forked is not tied"
    os.kill(child, signal.SIGKILL)
    os.close(other)
    holder.communicate()
    tied.communicate()
    assert (tmp_path / NAME).exists() == killed


def test_where_nobody_holds_a_lifeline_nobody_is_tied(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    assert not tie(tmp_path), "there is none"
    os.mkfifo(tmp_path / NAME)
    assert not tie(tmp_path), "left by a supervisor that has gone"
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).write_bytes(b"")
    assert not tie(tmp_path), "a file"
    # The collector may have closed some meanwhile that an earlier test has left.
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_lifeline_that_was_never_begun_is_closed(tmp_path: Path) -> None:
    with Lifeline():
        pass
    assert not list(tmp_path.iterdir())

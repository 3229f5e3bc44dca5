"""A process is asked for its stacks only where they go into our file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from distdebug.record.requests import stack_dump, supervision

PROGRAM = """
import faulthandler, os, sys
path, users, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
ours = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
faulthandler.register(number, file=ours, all_threads=True)
if users:
    os.close(ours)
    assert os.open(users, os.O_WRONLY | os.O_CREAT, 0o600) == ours
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("taken", [True, False])
def test_stacks_are_not_written_into_a_file_of_the_program(taken: bool, tmp_path: Path) -> None:
    users = tmp_path / "checkpoint"
    arguments = [str(users) if taken else "", str(int(supervision.STACK_SIGNAL))]
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    # Its pid is known to itself only, so the file has a name of ours first.
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(stacks / "mine"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (stacks / "mine").rename(supervision.dump_path(stacks, process.pid))
        text = stack_dump.ask(stacks, process.pid, 10 if not taken else 0.2)
        assert ("most recent call first" in text) != taken
        if taken:
            assert users.read_bytes() == b""
        assert process.poll() is None
    finally:
        process.communicate()


MANY = """
import faulthandler, os, sys, threading
faulthandler.register(int(sys.argv[2]), file=open(sys.argv[1], "a"), all_threads=True)

def park(depth):
    park(depth - 1) if depth else threading.Event().wait()

def main_function():
    print("ready", flush=True)
    sys.stdin.read()

for _ in range(90):
    threading.Thread(target=park, args=(90,), daemon=True).start()
main_function()
"""


def test_stacks_are_awaited_to_their_end(tmp_path: Path) -> None:
    """The main thread's is the last of them. The process is given no core in the middle."""
    process = subprocess.Popen(
        [sys.executable, "-c", MANY, str(tmp_path / "mine"), str(int(supervision.STACK_SIGNAL))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    path = supervision.dump_path(tmp_path, process.pid)

    def hold_up() -> None:
        while not path.stat().st_size:
            pass
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.5)  # ten times as long as what is over has not grown for
        os.kill(process.pid, signal.SIGCONT)

    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (tmp_path / "mine").rename(path)
        holding = threading.Thread(target=hold_up)
        holding.start()
        text = stack_dump.ask(tmp_path, process.pid, 60)
        holding.join()
        (main,) = [one for one in stack_dump.threads(text) if one.main]
        assert [function for _, _, function in main.frames] == ["main_function", "<module>"]
    finally:
        process.communicate()

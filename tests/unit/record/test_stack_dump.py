"""A process is asked for its stacks only where they go into our file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from debugger.record import stack_dump

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
    arguments = [str(users) if taken else "", str(int(stack_dump.STACK_SIGNAL))]
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
        (stacks / "mine").rename(stack_dump.dump_path(stacks, process.pid))
        text = stack_dump.ask(stacks, process.pid, 10 if not taken else 0.2)
        assert ("most recent call first" in text) != taken
        if taken:
            assert users.read_bytes() == b""
        assert process.poll() is None
    finally:
        process.communicate()

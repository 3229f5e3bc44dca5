"""What ranks print is shown whole on a stdout that is non-blocking and full now and then; one that
takes nothing any more costs what is shown, and no word of the interpreter's."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
from pathlib import Path

from distdebug.hook.loading import command

LINES = b"".join(b"%d %s\n" % (number, b"y" * 100) for number in range(5000))
COMMAND = command("supervisor.output.drain", alone=True)


def started(directory: Path, stdout: int, lines: bytes) -> subprocess.Popen[bytes]:
    """A drain whose only rank has printed the lines."""
    (directory / "logs").mkdir()
    printed = directory / "printed"
    printed.write_bytes(lines)
    reads, writes = os.pipe()
    rank = subprocess.Popen(["cat", str(printed)], stdout=writes)
    os.close(writes)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ours, theirs:
        listener.bind(str(directory / "s"))
        listener.listen()
        drain = subprocess.Popen(
            COMMAND,
            stdin=theirs.fileno(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            pass_fds=[listener.fileno(), reads],
        )
        request = {
            "logs": str(directory / "logs"),
            "most_bytes": 1 << 30,
            "colour": False,
            "defuse": False,
            "encodings": ["utf-8", "utf-8"],
            "show": True,
            "listener": listener.fileno(),
            "next": 1,
            "sources": [[0, reads, "0 out"]],
        }
        ours.send(json.dumps(request).encode())
        ours.send(b'{"close": true}')
    os.close(reads)
    assert rank.wait(60) == 0
    return drain


def test_a_non_blocking_pipe_gets_all(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)  # less than the drain writes at a time
    os.set_blocking(writes, False)
    drain = started(tmp_path, writes, LINES)
    os.close(writes)
    with open(reads, "rb") as file:
        shown = file.read()
    assert shown == b"".join(b"[rank 0] " + line for line in LINES.splitlines(keepends=True))
    assert drain.communicate(timeout=60) == (None, b"")
    assert drain.returncode == 0


def test_a_full_device_costs_no_word_and_no_log(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        drain = started(tmp_path, full.fileno(), b"a line\n")
    assert drain.communicate(timeout=60) == (None, b"")
    assert drain.returncode == 0
    assert (tmp_path / "logs" / "0.out").read_bytes() == b"a line\n"

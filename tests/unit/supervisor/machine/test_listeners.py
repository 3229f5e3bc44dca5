"""Who listens at an address, by this host's kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from distdebug.supervisor.machine import listeners
from distdebug.supervisor.machine.listeners import who_listens


def test_a_process_of_this_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"tcp://127.0.0.1:{port}", f"localhost:{port}"):
            heard = who_listens(address)
            assert heard is not None
            assert heard[0].endswith(f":{port}")
            assert heard[1].startswith(f"process {os.getpid()} (")
    assert who_listens(f"127.0.0.1:{port}") == (f"127.0.0.1:{port}", "")


def test_what_this_host_cannot_tell() -> None:
    for address in ("", "file:///tmp/x", "TCPStore:29500", "192.0.2.1:29500", "a:b"):
        assert who_listens(address) is None


_LONG = 1000
LISTENS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


def test_a_secret_on_its_command_line_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "MOST_COMMAND", _LONG)
    words = [sys.executable, "-c", LISTENS, "--port=7", "--password", "hunter2"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        heard = who_listens(f"127.0.0.1:{port}")
        process.communicate("\n")
    assert heard is not None
    assert heard[1].startswith(f"process {process.pid} (")
    assert "--password" in heard[1]
    assert "--port=7" in heard[1]
    assert "hunter2" not in heard[1]

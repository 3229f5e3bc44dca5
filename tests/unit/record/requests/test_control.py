"""The control socket: who may ask, what is answered, and what happens when nobody is there."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distdebug.record.requests import control
from distdebug.record.requests.control import ControlError, ControlServer

DONE: list[Mapping[str, Any]] = []


def _stacks(request: Mapping[str, Any]) -> str:
    DONE.append(request)
    return "took \x1b them"


def _stop(_request: Mapping[str, Any]) -> str:
    raise ValueError("there is nothing to stop")


def _break(_request: Mapping[str, Any]) -> str:
    raise KeyError("rank")


@pytest.fixture(name="directory")
def _directory(tmp_path: Path) -> Iterator[Path]:
    """Longer than the 108 bytes that a socket's address may have."""
    directory = tmp_path / ("deep" * 30)
    directory.mkdir()
    server = ControlServer(directory, {"stacks": _stacks, "stop": _stop, "break": _break})
    server.start()
    assert server.failure == ""
    yield directory
    server.close()
    assert not (directory / control.NAME).exists()


def test_it_is_done_and_answered(directory: Path) -> None:
    DONE.clear()
    assert control.ask(directory, "stacks", {"native": True}) == "took \x1b them"
    assert DONE == [{"native": True, "action": "stacks"}]


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("fly", "this run cannot fly; it can stacks, stop, break"),
        ("stop", "there is nothing to stop"),
        ("break", r"break failed \(KeyError: 'rank'\)"),
    ],
)
def test_refusals(directory: Path, action: str, sentence: str) -> None:
    with pytest.raises(ControlError, match=sentence):
        control.ask(directory, action, {})
    assert control.ask(directory, "stacks", {}) == "took \x1b them"  # it answers on


@pytest.mark.parametrize("request_line", [b"", b"[1]\n", b"{\n", b"\xff\n", b"x" * 70_000])
def test_nonsense_is_survived(directory: Path, request_line: bytes) -> None:
    with control.address(directory) as path, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        try:
            connection.sendall(request_line)
            connection.shutdown(socket.SHUT_WR)
            answer = control.receive_line(connection)
        except ConnectionError:
            answer = {}  # it had enough of it
    assert answer.get("ok") in (False, None)
    assert control.ask(directory, "stacks", {}) == "took \x1b them"


def test_only_its_user_may_open_it(directory: Path) -> None:
    assert stat.S_IMODE(os.stat(directory / control.NAME).st_mode) == 0o600


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_gets_no_answer() -> None:
    """Even through a socket that its mode would let them open."""
    DONE.clear()
    script = """
import os, socket
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("control.sock")
    print("connected")
    try:
        connection.sendall(b'{"action": "stacks"}\\n')
        print(connection.recv(100))
    except OSError:
        print(b"")
"""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        server = ControlServer(directory, {"stacks": _stacks})
        server.start()
        directory.chmod(0o777)
        (directory / control.NAME).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        server.close()
    assert done.stdout.split() == ["connected", "b''"], done.stderr
    assert DONE == []


def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="nobody supervises"):
        control.ask(tmp_path, "stacks", {})
    with pytest.raises(ControlError, match="nobody supervises"):
        control.ask(tmp_path / "gone", "stacks", {})


def test_a_socket_that_nobody_listens_to(tmp_path: Path) -> None:
    with control.address(tmp_path) as path, socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with pytest.raises(ControlError, match="nobody supervises"):
        control.ask(tmp_path, "stacks", {})


def test_no_answer_in_time(tmp_path: Path) -> None:
    with control.address(tmp_path) as path, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        with pytest.raises(ControlError, match="has not answered within 0 s"):
            control.ask(tmp_path, "stacks", {}, timeout_s=0.05)


def test_a_directory_that_cannot_have_a_socket(tmp_path: Path) -> None:
    (tmp_path / control.NAME).write_text(json.dumps({}))
    server = ControlServer(tmp_path, {})
    server.start()
    assert "nobody can act on this run" in server.failure
    server.close()
    assert (tmp_path / control.NAME).exists()  # it is somebody else's

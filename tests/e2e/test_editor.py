"""`--debugger debugpy`, attacked and used by a plain client of the Debug Adapter Protocol."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import finish, start

pytest.importorskip("debugpy", reason="debugpy is not installed")

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
answer = 41
breakpoint()
answer += 1
print("the answer is", answer, flush=True)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


class Client:
    """An editor, as far as this needs one."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, 60)
        self._file = self._socket.makefile("rb")
        self._number = 0

    def tell(self, command: str, **arguments: Any) -> int:
        self._number += 1
        message = {"type": "request", "seq": self._number, "command": command}
        body = json.dumps({**message, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self._number

    def hear(self) -> dict[str, Any] | None:
        """The next message; None where the other end has closed."""
        length = 0
        try:
            while line := self._file.readline().strip():
                length = int(line.partition(b":")[2])
            return json.loads(self._file.read(length)) if length else None
        except ConnectionResetError:
            return None

    def until(self, **wanted: Any) -> dict[str, Any]:
        """The first message of which this is true."""
        while (message := self.hear()) is not None:
            if wanted.items() <= message.items():
                return message
        raise AssertionError(f"the connection was closed before {wanted}")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        answer = self.until(type="response", request_seq=self.tell(command, **arguments))
        assert answer["success"], answer
        return answer.get("body") or {}

    def attach(self) -> None:
        self.ask("initialize", adapterID="test", clientID="test")
        self.tell("attach", justMyCode=True)
        self.until(type="event", event="initialized")
        self.ask("configurationDone")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def attacked(address: tuple[str, int], pwned: Path) -> bool:
    """Whether somebody at this port has code run."""
    client = Client(address)
    try:
        client.tell("initialize", adapterID="x", clientID="x")
        client.tell("attach")
        client.tell("configurationDone")
        client.tell("evaluate", expression=f"open({str(pwned)!r}, 'w')", context="repl")
        return client.hear() is not None
    except OSError:
        return False
    finally:
        client.close()


def test_only_this_user_has_code_run_in_the_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command = ["--debugger", "debugpy", "--", sys.executable, str(script)]
    process = start("exec", command, tmp_path / "run", tmp_path)
    try:
        use(process, script, tmp_path)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def use(process: subprocess.Popen[str], script: Path, tmp_path: Path) -> None:
    assert process.stderr is not None
    told = ""
    while not (found := re.search(r"debugger to ([\d.]+):(\d+)", told)):
        line = process.stderr.readline()
        assert line, told
        told += line
    address = (found[1], int(found[2]))
    pwned = tmp_path / "pwned"
    with socket.create_connection(address, 60) as browser:
        browser.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert browser.recv(1) == b""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            assert not attacked(address, pwned)
        finally:
            os.seteuid(0)
    assert not pwned.exists()

    client = Client(address)
    client.attach()
    stopped = client.until(type="event", event="stopped")
    thread = stopped["body"]["threadId"]
    frame = client.ask("stackTrace", threadId=thread)["stackFrames"][0]
    assert (frame["source"]["path"], frame["line"]) == (str(script), 6)
    assert client.ask("evaluate", expression="answer", frameId=frame["id"])["result"] == "41"
    client.ask("evaluate", expression="answer = 50", frameId=frame["id"], context="repl")
    client.ask("continue", threadId=thread)
    done = finish(process, tmp_path / "run")
    client.close()
    assert done.exit_code == 0, done.explain()
    assert "the answer is 51" in done.stdout
    assert not pwned.exists()

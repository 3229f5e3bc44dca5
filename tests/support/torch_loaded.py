"""Processes that need not import torch: forked by the plugin's fork server, for the tests that are
no tests in ranks, because something must stand outside the ranks or above them.

A program whose ranks import torch one by one costs 2 s of a core for each of them, which is most of
what such a test costs. Here that happens once in a pytest process, for those tests and for the
plugin's own ranks alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdebug.testing.channel import MessageChannel
from distdebug.testing.limits import READY_S
from distdebug.testing.server import ForkServer
from tests.support import runs

PRELOADED = "tests.support.preloaded"
"""What the server imports beside torch; pyproject.toml says the same for the plugin."""


class Forked:
    """A process that was forked, as `subprocess.Popen` shows one that was executed."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.exits = server.exits
        """How it and those that were forked with it have ended, as far as that was asked for."""
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit code, -n for signal n; None while it runs."""
        self._server.poll()
        status = self.exits.find(self.pid)
        if status is None:
            return None
        return -status.signal if status.signal is not None else status.code

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises TimeoutError."""
        until_s = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"process {self.pid} has not ended in {timeout_s} s")
            if not self._server.alive:
                raise RuntimeError("the process that has torch loaded has ended")
            self._server.await_news(left_s)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing, once it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class TorchLoaded:
    """The server as tests use it, for one thing at a time."""

    def __init__(self, server: ForkServer | None = None) -> None:
        self._folder = None if server else tempfile.TemporaryDirectory()
        if self._folder is not None:
            server = ForkServer(Path(self._folder.name) / "server.log", [PRELOADED])
        assert server is not None
        self._server = server

    def fork(
        self, main: str, request: Mapping[str, Any], count: int = 1
    ) -> list[tuple[Forked, socket.socket]]:
        """So many processes, each with the other end of its socket. They call `main`, a
        `module:function`, with their number, the count, that end, the request, and a socket that
        listens. What was forked before is ended."""
        self.kill()
        pairs = [socket.socketpair() for _ in range(count)]
        try:
            order = {**request, "main": main}
            pids = self._server.start(order, [theirs for _, theirs in pairs])
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [
            (Forked(self._server, pid), ours) for pid, (ours, _) in zip(pids, pairs, strict=True)
        ]

    def servers(self, count: int) -> list[TorchLoaded]:
        """So many more, for one thing each, as long as nothing else is forked from this one."""
        return [
            TorchLoaded(_ForkedServer(process, connection))
            for process, connection in self.fork("tests.support.in_fork:serve", {}, count)
        ]

    def python(
        self,
        code: str,
        folder: Path,
        extra: Mapping[str, str] | None = None,
        limit_s: float = 100.0,
    ) -> subprocess.CompletedProcess[str]:
        """`python -c CODE` in this folder, to its end."""
        said, complained = folder / "said", folder / "complained"
        order = request(folder, runs.environment(extra), said, complained, code=code)
        ((process, channel),) = self.fork("tests.support.in_fork:python", order)
        channel.close()
        ended = process.wait(limit_s)
        return subprocess.CompletedProcess(code, ended, said.read_text(), complained.read_text())

    def ready(self) -> None:
        """Wait until it has torch, so that what is forked then does not wait for it."""
        self._server.ready()

    def kill(self) -> None:
        """End all that was forked, and all below it."""
        self._server.kill()

    def close(self) -> None:
        """End the server, too."""
        self._server.close()
        if self._folder is not None:
            self._folder.cleanup()


class _ForkedServer(ForkServer):
    """A fork server that was forked from another one, so that it need not import anything."""

    def __init__(self, process: Forked, connection: socket.socket) -> None:
        super().__init__(Path(os.devnull))
        self._process = process
        self._channel = MessageChannel(connection)
        self._await("ready", READY_S)

    def close(self) -> None:
        """End it, and all below it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def request(
    cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path, **more: object
) -> dict[str, Any]:
    """What `in_fork.surroundings` needs, and more."""
    return {"cwd": str(cwd), "env": dict(env), "output": [str(stdout), str(stderr)], **more}

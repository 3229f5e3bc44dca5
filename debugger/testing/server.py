"""pytest's handle on its fork server: starts it when the first test needs ranks, and once more when
it has died."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..hook.loading import command
from ..record.exits import ExitLog
from .channel import Message, MessageChannel
from .limits import END_S, READY_S, START_S


class ServerError(Exception):
    """The fork server does not work; the message is one sentence and what it printed."""


class ForkServer:
    """The server of a pytest process. `log` is where its stderr goes; `preload` are modules that it
    imports for all ranks; `blocked` are plugins that the user has blocked, as `no:NAME`."""

    def __init__(self, log: Path, preload: Sequence[str] = (), blocked: Sequence[str] = ()) -> None:
        self._log = log
        self._preload = list(preload)
        self._blocked = list(blocked)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: MessageChannel | None = None
        self._load_plugins = True
        self.exits = ExitLog()
        """The ends of the ranks of the last test."""

    def __repr__(self) -> str:
        return f"<ForkServer {self._process.pid if self._process else 'not started'}>"

    def fileno(self) -> int:
        """Readable when a rank has ended: `poll` then takes that in."""
        assert self._channel is not None
        return self._channel.fileno()

    @property
    def alive(self) -> bool:
        return (
            self._process is not None
            and self._process.poll() is None
            and self._channel is not None
            and not self._channel.ended
        )

    def ready(self) -> None:
        """Return when ranks can be started. Raises ServerError."""
        if self.alive:
            return
        self.close()
        threads = self._begin()
        if threads > 1 and self._load_plugins:
            # A plugin starts threads when it is imported: what has threads must not be forked.
            self.close()
            self._load_plugins = False
            self._begin()

    def _begin(self) -> int:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        # As torchrun does it: ranks share the machine.
        environment.setdefault("OMP_NUM_THREADS", "1")
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        program, *words = command("testing.fork_server", str(theirs.fileno()), shared=True)
        with theirs, open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [program, *flags, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._channel = MessageChannel(ours)
        self._channel.send(
            {
                "sys_path": sys.path,
                "load_plugins": self._load_plugins,
                "blocked": self._blocked,
                "preload": self._preload,
            }
        )
        return int(self._await("ready", READY_S)["ready"])

    def start(self, request: Message, sockets: Sequence[socket.socket]) -> list[int]:
        """Fork a rank for each socket, whose other ends it talks to; their pids. Raises
        ServerError."""
        self.ready()
        assert self._channel is not None
        self.exits = ExitLog()
        descriptors = tuple(one.fileno() for one in sockets)
        self._channel.send({"start": request, "ranks": len(sockets)}, descriptors)
        return [int(pid) for pid in self._await("started", START_S)["started"]]

    def kill(self) -> None:
        """End the ranks, and whatever they have started."""
        if not self.alive or self._channel is None:
            self.close()
            return
        self._channel.send({"kill": True})
        try:
            self._await("killed", END_S)
        except ServerError:
            self.close()  # the next test gets another

    def poll(self) -> None:
        """Take in how ranks have ended, as far as it is known; does not wait."""
        while self._channel is not None and self._channel.readable(0):
            for message in self._channel.receive():
                self._take(message)

    def await_news(self, limit_s: float) -> None:
        """`poll`, once there is something to take in, within that time."""
        if self._channel is not None and self._channel.readable(limit_s):
            self.poll()

    def _take(self, message: Message) -> None:
        if "pid" in message:
            self.exits.add(int(message["pid"]), int(message["status"]), int(message["time_ns"]))

    def _await(self, name: str, limit_s: float) -> Message:
        channel = self._channel
        assert channel is not None
        found: Message | None = None
        until = time.monotonic() + limit_s
        while found is None and not channel.ended:
            left_s = until - time.monotonic()
            if left_s <= 0 or not channel.readable(left_s):
                self._complain("does not answer")
            for message in channel.receive():
                self._take(message)
                if name in message:
                    found = message
        if found is None:
            self._complain("ended early")
        return found

    def _complain(self, what: str) -> NoReturn:
        try:
            words = self._log.read_text(errors="backslashreplace").strip()[-2000:]
        except OSError:
            words = ""
        raise ServerError(f"the fork server for the ranks {what}{': ' if words else ''}{words}")

    def close(self) -> None:
        """End it, and all below it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            self._process = None


def dump(value: Any) -> Any:
    """The value as far as JSON can carry it, for options that ranks get; None for the rest."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None

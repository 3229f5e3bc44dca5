"""Answers what is asked over a run's `control.sock`, in a thread; only to the user who runs it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..record.requests.control import NAME, address, receive_line
from ..record.safe_files import user_of
from .limits import REQUEST_S

Action = Callable[[Mapping[str, Any]], str]
"""Does what was asked with these arguments; returns a sentence. A ValueError is a refusal."""


class ControlServer:
    """The control socket of one run. A socket that cannot be set up costs the actions, not the run:
    then `failure` says why."""

    def __init__(self, directory: Path, actions: Mapping[str, Action]) -> None:
        self._directory = directory
        self._actions = actions
        self._thread: threading.Thread | None = None
        self.failure = ""
        self._socket = socket.socket(socket.AF_UNIX)

    def start(self) -> None:
        """Listen from now on."""
        try:
            with address(self._directory) as path:
                before = os.umask(0o177)
                try:
                    self._socket.bind(path)
                finally:
                    os.umask(before)
            self._socket.listen(8)
        except OSError as error:
            self.failure = f"nobody can act on this run: {NAME}: {error.strerror}"
            return
        self._thread = threading.Thread(target=self._serve, name="distdebug-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; a request that is being answered is answered."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._thread is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._directory / NAME)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                connection.settimeout(REQUEST_S)
                if user_of(connection) in (os.geteuid(), 0):
                    ok, message = self._act(receive_line(connection))
                    answer = json.dumps({"ok": ok, "message": message})
                    connection.sendall(answer.encode() + b"\n")

    def _act(self, request: Mapping[str, Any]) -> tuple[bool, str]:
        name = request.get("action")
        action = self._actions.get(name) if isinstance(name, str) else None
        if action is None:
            return False, f"this run cannot {str(name)[:40]}; it can {', '.join(self._actions)}"
        try:
            return True, action(request)
        except ValueError as error:
            return False, str(error)
        except Exception as error:  # the thread answers the next request all the same
            return False, f"{name} failed ({type(error).__name__}: {error})"

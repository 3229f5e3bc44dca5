"""The requests to a run's supervisor, one JSON line there and one back over `control.sock`, and the
thread that answers them.

    {"action": "stacks", "native": true}      {"ok": true, "message": "..."}
    {"action": "fly"}                         {"ok": false, "message": "..."}

The socket belongs to one user and answers that user alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..safe_files import object_of, short_name, user_of

MOST_BYTES = 1 << 16
"""A request or an answer is at most so long."""
ANSWER_S = 60.0
NAME = "control.sock"
PERHAPS = "perhaps"
"""In DISTDEBUG_MEET: the supervisor does not know whether the job has other nodes."""


class ControlError(Exception):
    """The supervisor could not be asked, or it refused; the sentence says which."""


def ask(
    directory: Path, action: str, arguments: Mapping[str, Any], timeout_s: float = ANSWER_S
) -> str:
    """Ask the supervisor of the run; returns its answer in words. Raises ControlError."""
    try:
        with address(directory) as path, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(json.dumps({**arguments, "action": action}).encode() + b"\n")
            answer = receive_line(connection)
    except (FileNotFoundError, ConnectionRefusedError):
        raise ControlError("nobody supervises this run any more") from None
    except TimeoutError:
        raise ControlError(f"the supervisor has not answered within {timeout_s:.0f} s") from None
    except OSError as error:
        raise ControlError(f"the supervisor cannot be asked: {error.strerror or error}") from error
    message = str(answer.get("message", "no answer"))
    if answer.get("ok") is not True:
        raise ControlError(message)
    return message


@contextlib.contextmanager
def address(directory: Path) -> Iterator[str]:
    """The socket's path, in a form that always fits."""
    with short_name(directory.resolve()) as short:
        yield f"{short}/{NAME}"


def receive_line(connection: socket.socket) -> dict[str, Any]:
    """The JSON object on the next line; empty for anything else. Raises OSError."""
    received = b""
    while not received.endswith(b"\n") and len(received) < MOST_BYTES:
        data = connection.recv(MOST_BYTES)
        if not data:
            break
        received += data
    return object_of(received)


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
                connection.settimeout(2.0)  # for who has connected to say what it asks
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

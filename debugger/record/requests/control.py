"""The requests to a run's supervisor: one JSON line there and one back, over `control.sock`.

    {"action": "stacks", "native": true}      {"ok": true, "message": "..."}
    {"action": "fly"}                         {"ok": false, "message": "..."}

The socket belongs to one user and answers that user alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..safe_files import object_of, short_name

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

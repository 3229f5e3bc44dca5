"""gloo's connections: closing them is the only way to free a thread that waits in its C++ code.

DDP's reducer waits for futures of gloo's works below `loss.backward()`, where no signal is looked
at, and a group cannot be aborted while somebody waits. So that a verdict reaches such a thread, the
sockets that gloo opened are remembered, and shut down when the run is over anyway: gloo then fails
every call at once, at no cost to any call before.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

_FOLDER = "/proc/self/fd"
_known: dict[int, str] = {}
"""Descriptor and socket (`socket:[inode]`) of every connection of a group."""


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Sockets that are opened in here belong to a group."""
    before = _sockets()
    yield
    _known.update(
        (number, name) for number, name in _sockets().items() if before.get(number) != name
    )


def shut_down() -> bool:
    """End every connection of this process's groups; whether there was one."""
    found = False
    for number, name in list(_known.items()):
        with contextlib.suppress(OSError):
            # The number may be somebody else's by now.
            if os.readlink(f"{_FOLDER}/{number}") == name:
                with socket.socket(fileno=os.dup(number)) as connection:
                    connection.getpeername()  # raises for gloo's listener, which must live on
                    connection.shutdown(socket.SHUT_RDWR)
                found = True
    _known.clear()
    return found


def forget() -> None:
    """In a forked child: the connections are the parent's."""
    _known.clear()


def _sockets() -> dict[int, str]:
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.listdir(_FOLDER):
            with contextlib.suppress(OSError):
                name = os.readlink(f"{_FOLDER}/{entry}")
                if name.startswith("socket:"):
                    found[int(entry)] = name
    return found

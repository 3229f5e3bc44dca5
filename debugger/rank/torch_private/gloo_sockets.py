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

from ...system.proc import open_files, path_of


class GlooSockets:
    """The connections of this process's groups."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] = {}
        """Descriptor, socket (`socket:[inode]`) and group of every one."""

    @contextlib.contextmanager
    def remembered(self, group: str = "") -> Iterator[None]:
        """Sockets that are opened in here belong to a group; its name, for `shut_down` of it
        alone."""
        before = _sockets()
        yield
        self._known.update(
            (number, (name, group))
            for number, name in _sockets().items()
            if before.get(number) != name
        )

    def belong_to(self, group: str) -> bool:
        """Whether the group has connections that can be shut down."""
        return any(owner == group for _, owner in list(self._known.values()))

    def shut_down(self, group: str | None = None) -> bool:
        """End every connection of this process's groups, or of one group; whether there was one."""
        found = False
        for number, (name, owner) in list(self._known.items()):
            if group not in (None, owner):
                continue
            del self._known[number]
            with contextlib.suppress(OSError):
                # The number may be somebody else's by now.
                if os.readlink(path_of(number)) == name:
                    with socket.socket(fileno=os.dup(number)) as connection:
                        connection.getpeername()  # raises for gloo's listener, which must live on
                        connection.shutdown(socket.SHUT_RDWR)
                    found = True
        return found

    def forget(self) -> None:
        """Forgets the connections in a forked child: they are the parent's."""
        self._known.clear()


class NoSockets(GlooSockets):
    """A stand-in where nothing goes over a wire. A real look costs a listing of all descriptors for
    each group that is made, of which a mesh of many ranks makes hundreds."""

    @contextlib.contextmanager
    def remembered(self, group: str = "") -> Iterator[None]:
        del group
        yield


def _sockets() -> dict[int, str]:
    with contextlib.suppress(OSError):
        return {number: to for number, to in open_files() if to.startswith("socket:")}
    return {}

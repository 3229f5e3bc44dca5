"""A TCP listener on loopback that lets nobody in but the processes of one user.

Editors connect by TCP, where everybody on the host can. The kernel knows whose each socket is: for
a connection within this host it shows both of its ends. Whoever else comes is shut out before a
byte of his is read. So is a web page that makes the user's browser connect: what comes must begin
as the Debug Adapter Protocol does, which no HTTP request can.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from ...system.sockets import owner_of_peer
from ..limits import EDITOR_S

PROTOCOL = b"Content-Length:"
"""The beginning of every message of the Debug Adapter Protocol."""


class OwnersSocket(socket.socket):
    """A listener at 127.0.0.1; `accept` returns connections of this process's user alone."""

    @classmethod
    def bound(cls) -> OwnersSocket:
        """At a port that the system chooses. Raises OSError."""
        made = cls(socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.bind(("127.0.0.1", 0))
        except BaseException:
            made.close()
            raise
        return made

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            connection, address = super().accept()
            try:
                if owner_of_peer(connection) == os.geteuid() and _speaks_the_protocol(connection):
                    return connection, address
            except OSError:
                pass  # it has gone again
            connection.close()


def _speaks_the_protocol(connection: socket.socket) -> bool:
    connection.settimeout(EDITOR_S)
    try:
        begun = connection.recv(len(PROTOCOL), socket.MSG_PEEK | socket.MSG_WAITALL)
    finally:
        connection.settimeout(None)
    return begun == PROTOCOL

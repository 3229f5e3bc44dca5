"""A TCP listener on loopback that lets nobody in but the processes of one user.

Editors connect by TCP, where everybody on the host can. The kernel knows whose each socket is, and
says so in /proc/net/tcp: for a connection within this host both of its ends stand there. Whoever
else comes is shut out before a byte of his is read. So is a web page that makes the user's browser
connect: what comes must begin as the Debug Adapter Protocol does, which no HTTP request can.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from ..limits import EDITOR_S

TABLE = Path("/proc/self/net/tcp")
PROTOCOL = b"Content-Length:"
"""The beginning of every message of the Debug Adapter Protocol."""
_ESTABLISHED = "01"


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


def owner_of_peer(connection: socket.socket) -> int | None:
    """The user of the socket at the other end; None where that is not known, because it is closed
    already, or on another host. Raises OSError."""
    ends = _shown(connection.getpeername()), _shown(connection.getsockname())
    for line in TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        # What its process has closed has no inode any more, and belongs to root.
        if (fields[1], fields[2]) == ends and fields[3] == _ESTABLISHED and fields[9] != "0":
            return int(fields[7])
    return None


def _shown(address: tuple[str, int]) -> str:
    """Returns an address as the kernel shows it: in the machine's own order of bytes."""
    number = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{number:08X}:{address[1]:04X}"


def _speaks_the_protocol(connection: socket.socket) -> bool:
    connection.settimeout(EDITOR_S)
    try:
        begun = connection.recv(len(PROTOCOL), socket.MSG_PEEK | socket.MSG_WAITALL)
    finally:
        connection.settimeout(None)
    return begun == PROTOCOL

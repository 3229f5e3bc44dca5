"""Common parts of distcore's stream sockets: options, UNIX names, the other end's user."""

from __future__ import annotations

import math
import os
import socket
import struct

from ..limits import USER_TIMEOUT_S

USER_TIMEOUT_VARIABLE = "DISTCORE_TCP_USER_TIMEOUT_S"
_CREDENTIALS = struct.Struct("iII")

HAVE_UNIX = hasattr(socket, "AF_UNIX") and hasattr(socket, "SO_PEERCRED")
"""Abstract names and the peer's credentials: Linux has both."""


def user_timeout_ms() -> int:
    """Returns for how long a peer may be out of reach before its connection is given up.

    Raises ValueError for a value that is no positive number of seconds.
    """
    text = os.environ.get(USER_TIMEOUT_VARIABLE)
    if text is None:
        return round(USER_TIMEOUT_S * 1000)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.001 <= seconds <= 86_400:
        raise ValueError(
            f"{USER_TIMEOUT_VARIABLE}={text!a} is not a number of seconds from 0.001 to 86400"
        )
    return round(seconds * 1000)


def tune(connection: socket.socket, timeout_ms: int) -> None:
    """Sets the options of a connected socket: no delay, and keepalive, which ends a connection
    `timeout_ms` (at least 3 s) after the last sign of life if nothing is on its way to the peer.
    If something is, `half_open` does it."""
    connection.setblocking(False)
    if HAVE_UNIX and connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s, interval_s = max(1, timeout_ms // 6000), max(1, timeout_ms // 15_000)
    count = max(2, (timeout_ms // 1000 - idle_s) // interval_s)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", min(count, 127)),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def unix_name(token: str) -> str:
    """The abstract-namespace name for a listener's random token (lower-case hexadecimal)."""
    return f"\0distcore-{token}"


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a UNIX socket runs as this process's user."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return bool(user == os.geteuid())

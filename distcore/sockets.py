"""What distcore's stream sockets have in common: options, UNIX names, the other end's user."""

from __future__ import annotations

import math
import os
import socket
import struct

USER_TIMEOUT_VARIABLE = "DISTCORE_TCP_USER_TIMEOUT_S"
_USER_TIMEOUT_S = 30.0
_KEEPALIVE_IDLE_S = 5
_KEEPALIVE_INTERVAL_S = 2
_KEEPALIVE_COUNT = 3
_CREDENTIALS = struct.Struct("iII")

HAVE_UNIX = hasattr(socket, "AF_UNIX") and hasattr(socket, "SO_PEERCRED")
"""Abstract names and the peer's credentials: Linux has both."""


def user_timeout_ms() -> int:
    """How long sent data may stay unacknowledged before TCP gives the connection up.

    Raises ValueError for a value that is no positive number of seconds.
    """
    text = os.environ.get(USER_TIMEOUT_VARIABLE)
    if text is None:
        return round(_USER_TIMEOUT_S * 1000)
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
    """Sets the options of a connected socket: no delay, keepalive, `TCP_USER_TIMEOUT`.

    A half-open connection ends `timeout_ms` after the last sign of life, idle or not: Linux lets
    TCP_USER_TIMEOUT stand in for the number of keepalive probes (without it: after 11 s idle).
    """
    connection.setblocking(False)
    if HAVE_UNIX and connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", timeout_ms),
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

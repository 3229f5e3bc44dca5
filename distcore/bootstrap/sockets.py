"""distcore's stream sockets: their options, UNIX names, the other end's user, and connections that
are half open, on which nothing comes any more, and no reset either.

TCP_USER_TIMEOUT by itself ends too much: also a connection whose other end answers, but has had no
room for more all that time (a zero window), and that is only a rank that comes late. So it is set
when the peer has acknowledged nothing for a third of the time, though something is on its way, and
taken back when it answers. By then TCP has sent again; it checks the timeout when it does so, at
intervals that double, hence at least once more before the time is up. Where nothing is on its way
keepalive does it (see `tune`).
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
import weakref
from collections import deque

from ..limits import SHORTEST_HALF_OPEN_PAUSE_S, USER_TIMEOUT_S

USER_TIMEOUT_VARIABLE = "DISTCORE_TCP_USER_TIMEOUT_S"
_CREDENTIALS = struct.Struct("iII")


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
    If something is, `HalfOpen` does it."""
    connection.setblocking(False)
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s, interval_s = max(1, timeout_ms // 6000), max(1, timeout_ms // 15_000)
    count = max(2, (timeout_ms // 1000 - idle_s) // interval_s)
    for option, value in (
        (socket.TCP_KEEPIDLE, idle_s),
        (socket.TCP_KEEPINTVL, interval_s),
        (socket.TCP_KEEPCNT, min(count, 127)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def unix_name(token: str) -> str:
    """The abstract-namespace name for a listener's random token (lower-case hexadecimal)."""
    return f"\0distcore-{token}"


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a UNIX socket runs as this process's user."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return bool(user == os.geteuid())


_SUSPICIOUS = 0.3
_INFO = struct.Struct("<BBBBBBBB13I")
"""The beginning of Linux's struct tcp_info."""
_PROBES, _UNACKED, _SINCE_ACK_MS = 3, 12, 20
NEVER = float("inf")


class HalfOpen:
    """Watches TCP connections as long as they are used. `add` from any thread, `look` from one."""

    def __init__(self) -> None:
        self._new: deque[_Watched] = deque()
        self._watched: list[_Watched] = []
        self.due = NEVER
        """When to look next, by time.monotonic()."""

    def add(self, connection: socket.socket, timeout_ms: int) -> bool:
        """Give it up after that long, from now on; False for a UNIX socket: there is no need."""
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        self._new.append(_Watched(connection, timeout_ms))
        self.due = min(self.due, time.monotonic() + SHORTEST_HALF_OPEN_PAUSE_S)
        return True

    def look(self) -> None:
        """Look at all of them, if it is time."""
        now = time.monotonic()
        if now < self.due:
            return
        while self._new:
            self._watched.append(self._new.popleft())
        self._watched = [one for one in self._watched if one.look()]
        pauses = [one.timeout_ms / 15_000 for one in self._watched]
        pause_s = max(SHORTEST_HALF_OPEN_PAUSE_S, min([*pauses, 2.0]))
        self.due = now + pause_s if pauses else NEVER
        if self._new:  # they came meanwhile
            self.due = now + SHORTEST_HALF_OPEN_PAUSE_S


class _Watched:
    """A watched connection, for as long as its owner holds it."""

    def __init__(self, connection: socket.socket, timeout_ms: int) -> None:
        self._connection = weakref.ref(connection)
        self.timeout_ms = timeout_ms
        self._suspected = False

    def look(self) -> bool:
        """Set the timeout or take it back; False when the connection is over."""
        connection = self._connection()
        if connection is None or connection.fileno() < 0:
            return False
        try:
            suspected = self._is_silent(connection)
            if suspected != self._suspected:
                value = self.timeout_ms if suspected else 0
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, value)
        except OSError:
            return False
        self._suspected = suspected
        return True

    def _is_silent(self, connection: socket.socket) -> bool:
        packed = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        info = _INFO.unpack(packed)
        if info[_UNACKED]:
            return bool(info[_SINCE_ACK_MS] >= _SUSPICIOUS * self.timeout_ms)
        # It had no room, and does not answer when it is asked again and again. (Linux answers twice
        # a second at most.) The next time that it is asked, the time is up.
        return bool(info[_PROBES] > 1 and info[_SINCE_ACK_MS] >= self.timeout_ms)

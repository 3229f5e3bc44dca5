"""Decides whose connection a head takes: ZeroMQ asks about each public key that another side has
proved to hold (ZAP), before a byte of what it says is parsed.

A key that is not known yet is kept waiting for a moment, since the job's store may tell it a little
later than the node connects.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import zmq
from zmq.utils import z85

from .limits import UNKNOWN_KEY_S

MOST_WAITING = 1024
_ZAP = "inproc://zeromq.zap.01"


class KnownKeys:
    """The known keys of one context. All is called from the link's thread, but for the
    construction."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.allowed: set[str] = set()
        self.let_in = 0
        """Connections whose other end has proved to hold a key that is allowed."""
        self._waiting: deque[tuple[float, str, list[bytes]]] = deque()
        self.socket: Any = context.socket(zmq.ROUTER)
        self.socket.router_mandatory = True  # a connection that has gone is not let in
        self.socket.bind(_ZAP)

    @property
    def any_waits(self) -> bool:
        """Whether somebody's key is not known yet."""
        return bool(self._waiting)

    def allow(self, key: str) -> None:
        """Lets the holder of that key speak."""
        self.allowed.add(key)
        for row in [one for one in self._waiting if one[1] == key]:
            self._waiting.remove(row)
            self._answer(row[2], key)

    def read(self) -> None:
        """A request: routing id, "", version, request id, domain, address, identity, mechanism,
        credentials. Raises zmq.Again where there is none."""
        request: list[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        if len(request) != 9 or request[7] != b"CURVE" or len(request[8]) != 32:
            self._answer(request, "")
            return
        key = z85.encode(request[8]).decode()
        if key in self.allowed:
            self._answer(request, key)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append((time.monotonic(), key, request))
        else:
            self._answer(request, "")

    def refused(self, now_s: float) -> Iterator[str]:
        """The addresses of those who have waited too long, and are refused."""
        while self._waiting and now_s - self._waiting[0][0] > UNKNOWN_KEY_S:
            _, _, request = self._waiting.popleft()
            self._answer(request, "")
            yield request[5].decode("ascii", "replace")[:64]

    def _answer(self, request: list[bytes], key: str) -> None:
        status = (b"200", b"OK") if key else (b"400", b"this key is none of this job's nodes")
        with contextlib.suppress(zmq.ZMQError, IndexError):
            self.socket.send_multipart([*request[:4], *status, key.encode(), b""], zmq.NOBLOCK)
            self.let_in += bool(key)

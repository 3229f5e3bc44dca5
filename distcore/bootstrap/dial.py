"""The caller's side of a connection: find the way to a rank, connect, prove the secret.

A rank of the same host is called over its UNIX socket, which is faster than TCP and can pass file
descriptors. Where that cannot be (no such socket, another user's process behind it), over TCP.

Everything here waits in slices and calls `check` between them, which raises when the caller is to
stop waiting. The errors are those of sockets (`OSError`), `HandshakeRefused` and `DialTimeout`;
`rendezvous` gives them their meaning.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..limits import CHECK_EVERY_S
from . import handshake, sockets

# A listener that is flooded may drop a good caller before its hello was read.
_ATTEMPTS = 3

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """The address at which a rank is called: TCP, and its UNIX socket's token, if it has one."""

    address: str
    port: int
    unix_token: str | None

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


class DialTimeout(Exception):
    """The deadline has passed. (Not a TimeoutError: TCP has one of its own.)"""


class TurnedAway(ConnectionError):
    """A process listens there, but ends the connection instead of answering the hello."""


def dial(
    endpoint: Endpoint,
    over_unix: bool,
    hello: handshake.Hello,
    secret: bytes,
    timeout_ms: int,
    deadline: float,
    check: Callable[[], None],
) -> socket.socket:
    """A connected, authenticated, non-blocking socket to the rank that `hello` names.

    For a hello on the probe lane, the socket is connected and of no further use. Raises DialTimeout
    at `deadline` (time.monotonic seconds), TurnedAway, HandshakeRefused, another OSError when the
    rank cannot be reached, and what `check` raises.
    """
    attempt = 1
    while True:
        connection = _connect(endpoint, over_unix, deadline, check)
        try:
            sockets.tune(connection, timeout_ms)
            _prove(connection, hello, secret, deadline, check)
        except TurnedAway:
            connection.close()
            if attempt == _ATTEMPTS:
                raise
            _pause(0.05 * attempt, deadline, check)
            attempt += 1
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def _connect(
    endpoint: Endpoint, over_unix: bool, deadline: float, check: Callable[[], None]
) -> socket.socket:
    reason = None
    if over_unix and endpoint.unix_token is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            while True:
                try:
                    connection.connect(sockets.unix_name(endpoint.unix_token))
                    break
                except BlockingIOError:
                    # The listener's queue is full; poll() does not tell when it has room again.
                    _pause(0.005, deadline, check)
            if not sockets.same_user(connection):
                raise PermissionError("it belongs to another user")
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            reason = error
    family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        status = connection.connect_ex((endpoint.address, endpoint.port))
        if status == errno.EINPROGRESS:
            _wait(connection, select.POLLOUT, deadline, check)
            status = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            raise OSError(status, os.strerror(status))
    except BaseException:
        connection.close()
        raise
    if reason is not None:
        _notice(f"{endpoint} is on this host, but its UNIX socket cannot be used: {reason}")
    return connection


@functools.cache
def _notice(text: str) -> None:
    """Once per rank, not once per connection."""
    _logger.warning("distcore: %s; using TCP", text)


def _prove(
    connection: socket.socket,
    hello: handshake.Hello,
    secret: bytes,
    deadline: float,
    check: Callable[[], None],
) -> None:
    packed = hello.pack()
    answer = b""
    try:
        # Both messages are far smaller than an empty send buffer.
        connection.sendall(packed)
        while len(answer) < handshake.REPLY_BYTES:
            _wait(connection, select.POLLIN, deadline, check)
            chunk = connection.recv(handshake.REPLY_BYTES - len(answer))
            if not chunk:
                raise TurnedAway("it ended the connection without an answer")
            answer += chunk
    except (ConnectionResetError, BrokenPipeError) as error:
        raise TurnedAway("it reset the connection without an answer") from error
    evidence = handshake.proof(secret, packed, answer)
    if hello.lane != handshake.PROBE_LANE:
        connection.sendall(evidence)


def _wait(
    connection: socket.socket, event: int, deadline: float, check: Callable[[], None]
) -> None:
    """Until the socket is ready for `event` (or has failed, which the next operation tells)."""
    poller = select.poll()
    poller.register(connection, event)
    while True:
        check()
        left = deadline - time.monotonic()
        if poller.poll(max(0.0, min(left, CHECK_EVERY_S)) * 1000):
            return
        if left <= 0:
            raise DialTimeout("the deadline has passed")


def _pause(duration_s: float, deadline: float, check: Callable[[], None]) -> None:
    check()
    left = deadline - time.monotonic()
    if left <= 0:
        raise DialTimeout("the deadline has passed")
    time.sleep(min(duration_s, left))

"""The listener of a process, for all groups: one thread accepts, checks who calls, hands over.

It is opened for the first group and closed with the last. Groups come to it as `Registration`s,
by (group digest, own rank), so that several ranks of one group may live in one process. It has
one UNIX socket (abstract name, random) and a TCP socket per address that a group asked for.

A caller that is no rank of the job costs little: a fixed number of bytes is read from each, in one
thread that never waits for any of them, `PENDING_LIMIT` at once, `PENDING_S` long. When more come,
the longest silent one gives way.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..base.background_thread import BackgroundThread
from ..limits import HELLO_S, PENDING_S
from . import handshake, sockets
from .sockets import NEVER, HalfOpen

PENDING_LIMIT = 128
_BACKLOG = 1024


@dataclass(frozen=True)
class Registration:
    """A rank of a group, ready to be called. `deliver(sender, lane, connection)` takes an
    authenticated connection, or returns False when it has no use for it."""

    group: bytes
    rank: int
    size: int
    secret: bytes = field(repr=False)
    lanes: int
    timeout_ms: int
    deliver: Callable[[int, int, socket.socket], bool]
    free_lanes: frozenset[int] = frozenset()

    def admits(self, hello: handshake.Hello) -> bool:
        """The lower rank calls the higher one; on a free lane, or to ask whether it is there,
        anybody in the group may call."""
        if hello.lane == handshake.PROBE_LANE or hello.lane in self.free_lanes:
            return hello.sender < self.size and hello.sender != self.rank
        return hello.lane < self.lanes and hello.sender < self.rank


@dataclass(eq=False)
class _Pending:
    """A connection whose other end has not proven anything yet."""

    connection: socket.socket
    since: float
    needed: int = handshake.HELLO_BYTES
    received: bytes = b""
    hello: bytes = b""
    answer: bytes = b""
    registration: Registration | None = None
    sender: int = -1
    lane: int = -1


class RankListener:
    """The sockets, the thread and the registrations. Made by `acquire`; see the module."""

    def __init__(self) -> None:
        self.rejected = 0
        """The number of connections dropped: garbage, unauthenticated, duplicate or silent ones."""
        self.unix_token: str | None = None
        self._lock = threading.Lock()
        self._ports: dict[str, int] = {}
        self._registrations: dict[tuple[bytes, int], Registration] = {}
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        self._new_sockets: deque[socket.socket] = deque()
        self._pending: dict[_Pending, None] = {}
        self._paused_until: float | None = None
        self._closing = False
        self._half_open = HalfOpen()
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._awake, selectors.EVENT_READ)
        token = secrets.token_hex(16)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(sockets.unix_name(token))
        except OSError:
            listening.close()
        else:
            self.unix_token = token
            self._open(listening)
        self._thread = BackgroundThread(self._run, "distcore listener")
        self._thread.start()

    def listen(self, address: str | None) -> tuple[str, int]:
        """Listens on a TCP socket at an address of this machine (None: loopback), once.

        Returns address and port. Raises OSError when the address cannot be bound.
        """
        with self._lock:
            tries = ["127.0.0.1", "::1"] if address is None else [address]
            for place in tries:
                if place in self._ports:
                    return place, self._ports[place]
            for place in tries:
                family = socket.AF_INET6 if ":" in place else socket.AF_INET
                try:
                    listening = socket.create_server((place, 0), family=family, backlog=_BACKLOG)
                    break
                except OSError:
                    if place == tries[-1]:
                        raise
            self._ports[place] = int(listening.getsockname()[1])
            self._open(listening)
            return place, self._ports[place]

    def register(self, registration: Registration) -> None:
        """Answers calls for this group and rank."""
        with self._lock:
            self._registrations[registration.group, registration.rank] = registration

    def unregister(self, registration: Registration) -> None:
        """Calls for it are dropped from now on."""
        with self._lock:
            self._registrations.pop((registration.group, registration.rank), None)

    def is_called_by(self, registration: Registration, sender: int, lane: int) -> bool:
        """Whether somebody who said that he is this rank of the group has been answered, and may
        still be delivered. From any thread; once it is no, what he called for is delivered."""
        return any(
            pending.registration is registration
            and (pending.sender, pending.lane) == (sender, lane)
            for pending in list(self._pending)
        )

    def watch(self, connection: socket.socket, timeout_ms: int) -> None:
        """Give this connection up when nothing comes from its other end for so long."""
        if self._half_open.add(connection, timeout_ms):
            self._wake()

    def close(self) -> None:
        """Ends the thread and closes everything that was not handed over."""
        self._closing = True
        self._wake()
        if not self._thread.is_here():
            self._thread.join()
        self._close_sockets()

    def forget(self) -> None:
        """In a forked child: closes the parent's sockets, without a word to anybody.

        The parent's epoll is shared: nothing may be unregistered here, only closed.
        """
        self._closing = True
        self._close_sockets()

    def _open(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._new_sockets.append(listening)
        self._wake()

    def _wake(self) -> None:
        try:
            self._waker.send(b"w")
        except BlockingIOError:
            pass

    def _close_sockets(self) -> None:
        self._selector.close()
        for each in (*self._listening, *self._new_sockets, self._awake, self._waker):
            each.close()
        for pending in self._pending:
            pending.connection.close()
        self._pending.clear()

    def _run(self) -> None:
        while not self._closing:
            while self._new_sockets:
                self._listening.append(self._new_sockets.popleft())
                if self._paused_until is None:
                    self._selector.register(self._listening[-1], selectors.EVENT_READ)
            for key, _ in self._selector.select(self._timeout_s()):
                if isinstance(key.data, _Pending):
                    # It may have been dropped to make room earlier in this turn.
                    if key.data in self._pending:
                        self._advance(key.data)
                elif key.fileobj is self._awake:
                    self._awake.recv(4096)
                elif self._paused_until is None:
                    assert isinstance(key.fileobj, socket.socket)
                    self._accept(key.fileobj)
            self._half_open.look()
            now = time.monotonic()
            for pending in list(self._pending):
                if now - pending.since < PENDING_S:
                    break
                self._drop(pending)
            if self._paused_until is not None and now >= self._paused_until and self._has_room(now):
                self._paused_until = None
                for listening in self._listening:
                    self._selector.register(listening, selectors.EVENT_READ)

    def _timeout_s(self) -> float | None:
        until = self._half_open.due
        oldest = next(iter(self._pending), None)
        if self._paused_until is not None:
            until = min(until, self._paused_until)
        elif oldest is not None:
            until = min(until, oldest.since + PENDING_S)
        return None if until == NEVER else max(0.0, until - time.monotonic())

    def _accept(self, listening: socket.socket) -> None:
        """Accepts the callers that wait at this socket, as many as there is room for."""
        if not self._has_room(time.monotonic()):
            self._pause()
            return
        if len(self._pending) >= PENDING_LIMIT:
            self._drop(self._longest_silent())
        for _ in range(PENDING_LIMIT - len(self._pending)):
            try:
                connection, _address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause()
                    return
                # The peer has gone again.
                continue
            connection.setblocking(False)
            if listening.family == socket.AF_UNIX and not sockets.same_user(connection):
                self.rejected += 1
                connection.close()
                continue
            pending = _Pending(connection, time.monotonic())
            try:
                self._selector.register(connection, selectors.EVENT_READ, pending)
            except OSError:
                connection.close()
                continue
            self._pending[pending] = None
            self._advance(pending)

    def _has_room(self, now: float) -> bool:
        """Whether one more may come, if need be in place of the one longest silent."""
        if len(self._pending) < PENDING_LIMIT:
            return True
        return now - self._longest_silent().since >= HELLO_S

    def _longest_silent(self) -> _Pending:
        return min(self._pending, key=lambda each: (bool(each.hello), each.since))

    def _pause(self) -> None:
        """Lets callers wait in the kernel's queue for a moment."""
        if self._paused_until is None:
            self._paused_until = time.monotonic() + HELLO_S
            for listening in self._listening:
                self._selector.unregister(listening)

    def _advance(self, pending: _Pending) -> None:
        try:
            while True:
                chunk = pending.connection.recv(pending.needed)
                if not chunk:
                    return self._drop(pending)
                pending.received += chunk
                pending.needed -= len(chunk)
                if pending.needed:
                    continue
                if not pending.hello:
                    if self._greet(pending):
                        continue
                    return None
                return self._admit(pending)
        except BlockingIOError:
            return None
        except Exception:
            # A refusal, a reset, or something unforeseen: no peer may end this thread.
            return self._drop(pending)

    def _greet(self, pending: _Pending) -> bool:
        """Answers a complete hello; whether a proof is to come."""
        packed = pending.received
        hello = handshake.Hello.unpack(packed)
        with self._lock:
            registration = self._registrations.get((hello.group, hello.receiver))
        if registration is None or not registration.admits(hello):
            raise handshake.HandshakeRefused("no such group, rank or lane here")
        pending.hello, pending.received = packed, b""
        pending.needed = handshake.PROOF_BYTES
        pending.answer = handshake.reply(registration.secret, packed)
        pending.sender, pending.lane = hello.sender, hello.lane
        pending.registration = registration
        if pending.connection.send(pending.answer) != handshake.REPLY_BYTES:
            raise handshake.HandshakeRefused("the reply was not taken")
        if hello.lane == handshake.PROBE_LANE:
            self._release(pending)
            pending.connection.close()
            return False
        return True

    def _admit(self, pending: _Pending) -> None:
        """Checks a complete proof and hands the connection over."""
        registration = pending.registration
        assert registration is not None
        handshake.verify(registration.secret, pending.hello, pending.answer, pending.received)
        sockets.tune(pending.connection, registration.timeout_ms)
        self._half_open.add(pending.connection, registration.timeout_ms)
        self._selector.unregister(pending.connection)
        try:
            taken = registration.deliver(pending.sender, pending.lane, pending.connection)
        finally:  # after it: see `is_called_by`
            del self._pending[pending]
        if not taken:
            self.rejected += 1
            pending.connection.close()

    def _release(self, pending: _Pending) -> None:
        if pending in self._pending:
            del self._pending[pending]
            self._selector.unregister(pending.connection)

    def _drop(self, pending: _Pending) -> None:
        self._release(pending)
        self.rejected += 1
        pending.connection.close()


class _ListeningProcess:
    """The process's listener and who uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listener: RankListener | None = None
        self.users = 0
        self.watches_forks = False

    def after_fork(self) -> None:
        """Forgets thread and lock in a forked child: the thread does not exist here, and the lock
        may be held for ever."""
        self.lock = threading.Lock()
        self.users = 0
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.forget()


_process = _ListeningProcess()


def acquire() -> RankListener:
    """This process's listener, opened if need be; each caller gives it back with `release`."""
    with _process.lock:
        if not _process.watches_forks:
            os.register_at_fork(after_in_child=_process.after_fork)
            _process.watches_forks = True
        if _process.listener is None:
            _process.listener = RankListener()
        _process.users += 1
        return _process.listener


def release(listener: RankListener) -> None:
    """Gives the listener back; the last one closes it."""
    with _process.lock:
        if listener is not _process.listener:
            # It belongs to the process that this one was forked from.
            return
        _process.users -= 1
        if _process.users:
            return
        _process.listener = None
    listener.close()

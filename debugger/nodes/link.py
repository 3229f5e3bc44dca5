"""The part that both ends of a link have in common: a thread that owns the sockets, and two queues.

Sockets of ZeroMQ belong to one thread. The supervisor's loop puts what is to be sent into a queue
and takes what has come out of another one; the thread answers pings by itself, so that a supervisor
that takes stacks for some seconds is not taken for lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from .keys import KeyPair
from .limits import LINGER_MS
from .messages import Inbox
from .presence import Listening

MOST_AT_ONCE = 1000
_TCP_CONGESTION, _TCP_THIN_LINEAR_TIMEOUTS = 13, 16
"""Options of Linux; Python names them on Linux alone, or not at all."""


def resend_steadily(descriptor: int) -> None:
    """Have what is lost on this connection sent again every few tenths of a second. By itself TCP
    waits twice as long each time: after an interruption of two seconds it is silent for nearly two
    more, for which its peer would be taken for lost. A kernel that cannot do it stays with that."""
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        # With bbr, which many hosts have, Linux does not count a stream as thin.
        connection.setsockopt(sockets.IPPROTO_TCP, _TCP_CONGESTION, b"reno")
        connection.setsockopt(sockets.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)


class Link(threading.Thread):
    """A link's end. `say` takes a sentence for the terminal, from this thread. Without a `pair` of
    keys it makes one of its own."""

    def __init__(self, name: str, say: Callable[[str], None], pair: KeyPair | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self._say_to = say
        self._said: set[str] = set()
        self._reader, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._closing = threading.Event()
        self._listening = Listening()
        self._read_all = True
        self._inbox = Inbox()
        self.context = zmq.Context(io_threads=1)
        pair = pair or KeyPair(*zmq.curve_keypair())
        self.key = pair.public.decode()
        self._secret = pair.secret
        self.failure = ""

    def say(self, sentence: str) -> None:
        """Says each sentence once."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._say_to(sentence)

    def socket(self, kind: int, address: str) -> Any:
        """Makes a socket of our sort, with our keys, for an address of that family."""
        made = self.context.socket(kind)
        made.ipv6 = ":" in address
        made.curve_publickey = self.key.encode()
        made.curve_secretkey = self._secret
        made.linger = LINGER_MS
        made.immediate = True
        return made

    def later(self, call: Callable[[], None]) -> None:
        """Have the thread call this."""
        self._calls.append(call)
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")

    def close(self) -> None:
        """Send what is left, and end the thread."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self.is_alive():
            self.later(lambda: None)
            self.join(LINGER_MS / 1000 + 1)
        if self.is_alive():
            return  # a thread that hangs keeps what it has
        os.close(self._reader)
        os.close(self._waker)
        self.context.destroy(linger=LINGER_MS)

    # -- in the thread -------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until it is closed. A fault of ours ends the link, and nothing else."""
        try:
            self._open()
            poller = zmq.Poller()
            poller.register(self._reader, zmq.POLLIN)
            woken = select.poll()
            woken.register(self._reader, select.POLLIN)
            attended: list[Any] = []
            while not self._closing.is_set():
                # Polls the sockets that there are now, of which some may have come or gone, and
                # returns them.
                sockets = self._sockets()
                for gone in attended:
                    if gone not in sockets:
                        poller.unregister(gone)
                for new in sockets:
                    if new not in attended:
                        poller.register(new, zmq.POLLIN)
                attended = sockets
                if self._peers is not None:
                    # What is not taken in stays with who has said it.
                    poller.modify(self._peers, 0 if self._inbox.full else zmq.POLLIN)
                ready = dict(poller.poll(timeout=100))
                if self._reader in ready:
                    with contextlib.suppress(OSError):
                        os.read(self._reader, 4096)
                self._run_calls()
                for socket in attended:
                    if socket in ready and not socket.closed:
                        self._drain(socket)
                read_all = self._read_all and not self._inbox.full
                self._listening.looked(time.monotonic(), read_all)
                self._read_all = True
                self._tick()
                if rest_s := self._rest_s():
                    woken.poll(rest_s * 1000)
            self._run_calls()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self.say(f"the link between the nodes is off: {self.failure}")
        finally:
            for socket in self._sockets():
                with contextlib.suppress(Exception):
                    socket.disable_monitor()
                socket.close()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _open(self) -> None:
        """Make the sockets."""

    def _sockets(self) -> list[Any]:
        return []

    @property
    def _peers(self) -> Any:
        """The socket by which the other ends are heard."""
        return None

    def _drain(self, socket: Any) -> None:
        """Something has come. Of a socket that brings ever more so much is read that the others
        have their turn; then the other ends may have said more than was heard."""
        is_peers = socket is self._peers
        self._read_all = self._read_all and not is_peers
        for _ in range(MOST_AT_ONCE):
            if (is_peers and self._inbox.full) or socket.closed:
                return
            try:
                self._read(socket)
            except zmq.Again:
                self._read_all = self._read_all or is_peers
                return

    def _read(self, socket: Any) -> None:
        """Reads one message. Raises zmq.Again where there is none."""

    def _tick(self) -> None:
        """Acts about ten times a second, and after everything that came."""

    def _rest_s(self) -> float:
        """Returns for how long nothing is read, unless something is to be sent."""
        return 0.0

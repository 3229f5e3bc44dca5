"""The prompts of ranks that stand at breakpoints on other nodes, on every node.

A node tells the head who stands (`stops`), and the head tells each node who stands elsewhere. Every
supervisor leaves word of those in its own run directory, as a rank does, and listens there in the
rank's place: so whoever looks for breakpoints, or attaches to one, does as on one node, and ranks
that wait for one that stands do not run into their timeouts. What a terminal and a rank say to each
other goes through the head and the nodes unread (`prompt`): each connection has a number, its first
message says to whom it leads, and its last one that one side has gone. What comes `back` is said by
a rank.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..record.reading.plain_data import made_of
from ..record.requests import breakpoints, supervision
from ..record.requests.breakpoints import (
    MAX_MESSAGE_BYTES,
    Stop,
    announce,
    connect,
    listen,
    same_user,
    stops,
    withdraw,
)
from .messages import Message

MOST_STOPS = 4096
"""The most stops of one node."""
MOST_TEXT = 4096
_CHUNK = 1 << 16

Send = Callable[[Message], None]
Rows = list[list[Any]]


class Tunnels:
    """The connections of one side, by number: what comes from each goes to the other side, by
    `send` of that connection; a thread reads each. `more` is said with all that goes there."""

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._open: dict[int, socket.socket] = {}

    def begin(
        self, number: int, connection: socket.socket, send: Send, first: Message | None = None
    ) -> None:
        """Carry what comes from this connection; `first` goes before all of it."""
        self._open[number] = connection  # before anything can be answered
        if first is not None:
            send(first)
        name = f"distdebug-prompt-{number}"
        threading.Thread(
            target=self._read, args=(number, connection, send), name=name, daemon=True
        ).start()

    def heard(self, number: int, data: bytes, end: bool) -> None:
        """The other side has said this, or has gone."""
        connection = self._open.get(number)
        if connection is None:
            return
        try:
            if len(data) > MAX_MESSAGE_BYTES:
                raise OSError("no prompt says so much")
            connection.sendall(data)
        except OSError:
            end = True
        if end:
            self._open.pop(number, None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # its reader ends, and closes it

    def close(self) -> None:
        """All of them."""
        for number in list(self._open):
            self.heard(number, b"", True)

    def _read(self, number: int, connection: socket.socket, send: Send) -> None:
        with contextlib.closing(connection):
            while True:
                try:
                    data = connection.recv(_CHUNK)
                except OSError:
                    data = b""
                if not data:
                    break
                send(Message("prompt", {"id": number, **self._more}, data))
            if self._open.pop(number, None) is not None:
                send(Message("prompt", {"id": number, "end": True, **self._more}))


class Prompts:
    """The prompts at one supervisor. `send`: to the supervisor of that number; a node knows one
    other, its head."""

    def __init__(self, directory: Path, send: Callable[[int, Message], None]) -> None:
        self._directory = directory
        self._send = send
        self._elsewhere: dict[tuple[int, str], tuple[Stop, socket.socket | None]] = {}
        """The stops of other nodes, as they are seen in this run directory."""
        self._from_here = Tunnels()
        """From terminals here to ranks of other nodes."""
        self._to_here: dict[int, Tunnels] = {}
        """From terminals there to ranks here, by the other supervisor."""
        self._numbers = itertools.count(1)
        self._told: dict[int, Rows] = {}

    @property
    def far(self) -> frozenset[str]:
        """The names of those that stand on other nodes."""
        return frozenset(stop.name for stop, _ in list(self._elsewhere.values()))

    def tell(self, others: Callable[[], Iterable[int]]) -> None:
        """Tells each of the others, where it has changed, who stands here or elsewhere, but for
        whom it has told of itself."""
        found = stops(self._directory)
        if not found and not any(self._told.values()):
            return
        for other in others():
            its = {stop.name for key, (stop, _) in self._elsewhere.items() if key[0] == other}
            rows: Rows = [
                [one.rank, one.pid, one.file, one.line, one.function, one.why, one.address]
                for one in found
                if one.rank is not None and one.name not in its
            ]
            if rows != self._told.get(other, []):
                self._told[other] = rows
                self._send(other, Message("stops", {"stops": rows}))

    def expect(self, nodes: Iterable[int] = ()) -> None:
        """A rank is asked to stand, of this node or of another one: ranks here take care of their
        timeouts, and those nodes are to be ready to wait for it."""
        with contextlib.suppress(OSError):
            breakpoints.ask_to_stop(self._directory, os.getpid())
        for node in nodes:
            self._send(node, Message("stops", {"asked": True}))

    def stand(self, other: int, data: Mapping[str, Any]) -> None:
        """Takes the stops of elsewhere, and those that are about to come. Raises what makes no
        sense, and OSError."""
        if data.get("asked") is True:
            self.expect()
            return
        now = {stop.name: stop for stop in map(_stop_of, data["stops"][:MOST_STOPS])}
        self._leave(other, now)
        for name, stop in now.items():
            # By our own pid: of another node's process nobody here could say that it lives.
            ours = replace(stop, pid=os.getpid())
            known = self._elsewhere.get((other, name))
            if known is not None and known[0] == ours:
                continue
            if known is not None:
                self._leaves((other, name))
            announce(self._directory, ours)
            listener = None
            if not stop.address:
                listener = listen(self._directory, ours)
                words = (listener, other, name)
                threading.Thread(
                    target=self._accept, args=words, name="distdebug-prompts", daemon=True
                ).start()
            self._elsewhere[other, name] = ours, listener

    def anew(self, other: int) -> None:
        """Forgets what the other was told: it comes again, or for the first time."""
        self._told.pop(other, None)
        if other in self._to_here:
            self._to_here.pop(other).close()

    def gone(self, other: int) -> None:
        """The other is not there any more, or was not for a moment."""
        self.anew(other)
        self._leave(other)

    def heard(self, other: int, data: Mapping[str, Any], blob: bytes) -> None:
        """A rank there speaks to a terminal, or a terminal there to a rank. Raises TypeError and
        KeyError for what makes no sense."""
        number, end, to = int(data["id"]), data.get("end") is True, data.get("to")
        if data.get("back") is True:
            self._from_here.heard(number, blob, end)
            return
        tunnels = self._to_here.setdefault(other, Tunnels(back=True))
        if to is None:
            tunnels.heard(number, blob, end)
            return
        stop = next((one for one in stops(self._directory) if one.name == to), None)
        send = partial(self._send, other)
        try:
            if stop is None:
                raise OSError("it has gone on")
            tunnels.begin(number, connect(self._directory, stop), send)
        except OSError:
            send(Message("prompt", {"id": number, "end": True, "back": True}))

    def close(self) -> None:
        """Removes all stops, and closes their connections."""
        for tunnels in self._to_here.values():
            tunnels.close()
        for key in list(self._elsewhere):
            self._leaves(key)
        self._from_here.close()
        supervision.withdraw_request(self._directory, os.getpid())

    def _leave(self, other: int, but: Container[str] = ()) -> None:
        for key in [key for key in self._elsewhere if key[0] == other and key[1] not in but]:
            self._leaves(key)

    def _leaves(self, key: tuple[int, str]) -> None:
        stop, listener = self._elsewhere.pop(key)
        withdraw(self._directory, stop)
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it

    def _accept(self, listener: socket.socket, node: int, name: str) -> None:
        with contextlib.closing(listener):
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if not same_user(connection):
                    connection.close()
                    continue
                number = next(self._numbers)
                leads = Message("prompt", {"id": number, "to": name})
                self._from_here.begin(number, connection, partial(self._send, node), leads)


def _stop_of(row: Any) -> Stop:
    stop = made_of(Stop, row, MOST_TEXT)
    if stop.rank is None or not all(0 <= one < 1 << 32 for one in (stop.rank, stop.pid, stop.line)):
        raise ValueError("a node reports a breakpoint that does not exist")
    return stop

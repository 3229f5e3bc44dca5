"""The prompts of ranks that stand at breakpoints on other nodes, where the head is.

A node tells the head who stands (`stops`). The head leaves word of it in its own run directory, as
a rank does, and listens there in the rank's place: so whoever looks for breakpoints, or attaches to
one, does as on one node. What a terminal and a rank say to each other goes through the head and the
node unread (`prompt`): each connection has a number, its first message says to which process it
leads, and its last one that one side has gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...nodes.messages import Message
from ...record.breakpoints import (
    MAX_MESSAGE_BYTES,
    Stop,
    announce,
    connect,
    listen,
    same_user,
    stops,
    withdraw,
)
from ...record.wording import printable

MOST_STOPS = 4096
"""Of one node."""
MOST_TEXT = 4096
_CHUNK = 1 << 16

Send = Callable[[Message], None]


class Tunnels:
    """One side's connections, by number: what comes from each goes to the other side, by `send` of
    that connection; a thread reads each."""

    def __init__(self) -> None:
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
                send(Message("prompt", {"id": number}, data))
            if self._open.pop(number, None) is not None:
                send(Message("prompt", {"id": number, "end": True}))


class NodePrompts:
    """A node's side; `send`: to the head."""

    def __init__(self, directory: Path, send: Send) -> None:
        self._directory = directory
        self._send = send
        self._told: list[list[Any]] = []
        self._tunnels = Tunnels()
        self.close = self._tunnels.close

    def anew(self) -> None:
        """Nothing counts as told, and the head's terminals are gone."""
        self._told = []
        self._tunnels.close()

    def next(self) -> Message | None:
        """Who stands here, where that has changed."""
        rows = [
            [one.rank, one.pid, one.file, one.line, one.function, one.why, one.address]
            for one in stops(self._directory)
            if one.rank is not None
        ]
        if rows == self._told:
            return None
        self._told = rows
        return Message("stops", {"stops": rows})

    def heard(self, data: Mapping[str, Any], blob: bytes) -> None:
        """The head speaks for a terminal. Raises TypeError and KeyError for what makes no sense."""
        number, to = int(data["id"]), data.get("to")
        if to is None:
            self._tunnels.heard(number, blob, data.get("end") is True)
            return
        stop = next((one for one in stops(self._directory) if one.pid == to), None)
        try:
            if stop is None:
                raise OSError("it has gone on")
            self._tunnels.begin(number, connect(self._directory, stop), self._send)
        except OSError:
            self._send(Message("prompt", {"id": number, "end": True}))


class HeadPrompts:
    """The head's side; `send`: to the node of that number."""

    def __init__(self, directory: Path, send: Callable[[int, Message], None]) -> None:
        self._directory = directory
        self._send = send
        self._stand: dict[tuple[int, int], tuple[Stop, socket.socket | None]] = {}
        self._tunnels = Tunnels()
        self._numbers = 0
        self._lock = threading.Lock()

    def stand(self, node: int, rows: Any) -> None:
        """Who stands on that node now. Raises ValueError and TypeError for what makes no sense,
        and OSError."""
        now = {stop.pid: stop for stop in map(_stop_of, rows[:MOST_STOPS])}
        for key in [key for key in self._stand if key[0] == node and key[1] not in now]:
            self._leaves(key)
        for pid, stop in now.items():
            # By our own pid: of another node's process nobody here could say that it lives.
            ours = replace(stop, pid=os.getpid())
            known = self._stand.get((node, pid))
            if known is not None and known[0] == ours:
                continue
            if known is not None:
                self._leaves((node, pid))
            announce(self._directory, ours)
            listener = None
            if not stop.address:
                listener = listen(self._directory, ours)
                words = (listener, node, pid)
                threading.Thread(
                    target=self._accept, args=words, name="distdebug-prompts", daemon=True
                ).start()
            self._stand[node, pid] = ours, listener

    @property
    def names(self) -> frozenset[str]:
        """Those that stand now, as the run directory has them."""
        return frozenset(stop.name for stop, _ in list(self._stand.values()))

    def gone(self, node: int) -> None:
        """The node is not there any more."""
        for key in [key for key in self._stand if key[0] == node]:
            self._leaves(key)

    def heard(self, data: Mapping[str, Any], blob: bytes) -> None:
        """A rank speaks to a terminal here."""
        self._tunnels.heard(int(data["id"]), blob, data.get("end") is True)

    def close(self) -> None:
        """Nobody stands any more."""
        for key in list(self._stand):
            self._leaves(key)
        self._tunnels.close()

    def _leaves(self, key: tuple[int, int]) -> None:
        stop, listener = self._stand.pop(key)
        withdraw(self._directory, stop)
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it

    def _accept(self, listener: socket.socket, node: int, pid: int) -> None:
        with contextlib.closing(listener):
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if not same_user(connection):
                    connection.close()
                    continue
                with self._lock:
                    self._numbers += 1
                    number = self._numbers
                leads = Message("prompt", {"id": number, "to": pid})
                send = partial(self._send, node)
                self._tunnels.begin(number, connection, send, leads)


def _stop_of(row: Any) -> Stop:
    rank, pid, file, line, function, why, address = row
    numbers = (rank, pid, line)
    if any(type(one) is not int or not 0 <= one < 1 << 32 for one in numbers):
        raise ValueError("a node reports a breakpoint that does not exist")
    texts = (printable(str(one), MOST_TEXT) for one in (file, function, why, address))
    file, function, why, address = texts
    return Stop(rank, pid, file, line, function, why, address)

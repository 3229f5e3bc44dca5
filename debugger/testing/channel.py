"""JSON lines over a socket: between pytest, its fork server and the ranks of a test."""

from __future__ import annotations

import json
import os
import selectors
import socket
from typing import Any

Message = dict[str, Any]
_CHUNK = 1 << 16


class MessageChannel:
    """An end of a channel. A process that is interrupted in `ask` or `receive` loses nothing by
    it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self._descriptors: list[int] = []
        self.ended = False
        """The other end has gone."""

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """False where the other end has gone. The descriptors go with the message."""
        try:
            for one in descriptors:  # a byte must go with each; blanks before a line change nothing
                socket.send_fds(self._connection, [b" "], [one])
            self._connection.sendall(json.dumps(message, default=str).encode() + b"\n")
        except (OSError, ValueError):
            return False
        return True

    def readable(self, limit_s: float) -> bool:
        """Whether something, or the end, is there to be read within that time."""
        if self.ended:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            return bool(selector.select(limit_s))

    def receive(self) -> list[Message]:
        """Returns what has come; waits for some. Empty with `ended` set: no more will come."""
        try:
            data, found, _, _ = socket.recv_fds(self._connection, _CHUNK, 1)
        except ConnectionError:
            data, found = b"", []
        for descriptor in found:
            os.set_inheritable(descriptor, False)  # no program that a rank starts is to hold it
        self._descriptors += found
        if not data:
            self.ended = True
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a rank's process may die in the middle of a line
            if isinstance(message, dict):
                messages.append(message)
        return messages

    def next(self) -> Message | None:
        """Wait for one message; None when no more will come."""
        while not self.ended:
            for message in self.receive():
                return message
        return None

    def take_descriptors(self, count: int) -> list[int]:
        """Returns the descriptors that came with the last message."""
        found, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return found

    def close(self) -> None:
        self._connection.close()

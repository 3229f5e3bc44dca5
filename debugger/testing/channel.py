"""JSON lines over a socket: between pytest, its fork server and the ranks of a test."""

from __future__ import annotations

import json
import os
import selectors
import socket
from typing import Any

Message = dict[str, Any]
_CHUNK = 1 << 16
_MOST_DESCRIPTORS = 250
"""The kernel takes 253 at once."""


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
        data = json.dumps(message, default=str).encode() + b"\n"
        try:
            if descriptors:
                first, rest = descriptors[:_MOST_DESCRIPTORS], descriptors[_MOST_DESCRIPTORS:]
                sent = socket.send_fds(self._connection, [data[:_CHUNK]], first)
                while rest:
                    first, rest = rest[:_MOST_DESCRIPTORS], rest[_MOST_DESCRIPTORS:]
                    # A byte must go with them; a blank before the line's end changes nothing.
                    socket.send_fds(self._connection, [data[sent : sent + 1]], first)
                    sent += 1
                data = data[sent:]
            self._connection.sendall(data)
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
        if self._descriptors_wanted:
            data, found, _, _ = socket.recv_fds(self._connection, _CHUNK, _MOST_DESCRIPTORS)
            for descriptor in found:
                os.set_inheritable(descriptor, False)  # no program that a rank starts is to hold it
            self._descriptors += found
        else:
            try:
                data = self._connection.recv(_CHUNK)
            except ConnectionError:
                data = b""
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

    _descriptors_wanted = False

    def take_descriptors(self, count: int) -> list[int]:
        """Returns the descriptors that came with the last message."""
        found, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return found

    def close(self) -> None:
        self._connection.close()


class DescriptorChannel(MessageChannel):
    """An end that takes descriptors, too."""

    _descriptors_wanted = True

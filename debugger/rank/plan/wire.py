"""How a planned rank and the process that runs it talk: a line of JSON, and the bytes that belong to
it. Both ends are one program's; nothing is ever unpickled."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_HEAD = struct.Struct("<I")
_CHUNK = 1 << 18

Message = tuple[list[Any], list[bytes | None]]
"""What is said, and values that are no JSON; None: one that is not known."""


def packed(words: Sequence[Any], values: Sequence[bytes | None] = ()) -> bytes:
    """One message as bytes."""
    sizes = [-1 if one is None else len(one) for one in values]
    head = json.dumps([list(words), sizes], separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(len(head)), head, *(one for one in values if one)])


class Unpacker:
    """Gives whole messages out of bytes that come in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with this."""
        self._bytes += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Message | None:
        held = self._bytes
        if len(held) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(held)
        start = _HEAD.size + length
        if len(held) < start:
            return None
        words, sizes = json.loads(bytes(held[_HEAD.size : start]))
        end = start + sum(size for size in sizes if size > 0)
        if len(held) < end:
            return None
        values: list[bytes | None] = []
        at = start
        for size in sizes:
            if size < 0:
                values.append(None)
                continue
            values.append(bytes(held[at : at + size]))
            at += size
        del held[:end]
        return words, values


class Line:
    """The rank's end. `ask` waits for the answer; one thread speaks at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unpacker = Unpacker()

    def tell(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> None:
        """Say something that needs no answer."""
        self._connection.sendall(packed(words, values))

    def ask(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> Message:
        """Say something, and wait for the answer. Raises ConnectionError when nobody is there."""
        self.tell(words, values)
        while True:
            data = self._connection.recv(_CHUNK)
            if not data:
                raise ConnectionError("the process that runs the plan has gone")
            for answer in self._unpacker.feed(data):
                return answer

"""The wire between a planned rank and the process that runs it: a line of JSON, and bytes with it.

Both ends are one program's; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_HEAD = struct.Struct("<I")
CHUNK = 1 << 18

LOOK = -2
"""The number of a question to the rank: see `Planner.stands`."""

Message = tuple[list[Any], list[bytes | None]]
"""The words, and values that are no JSON; None: one that is not known."""


def packed(words: Sequence[Any], values: Sequence[bytes | None] = ()) -> bytes:
    """Returns a message as bytes."""
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

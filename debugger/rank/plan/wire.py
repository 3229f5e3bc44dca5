"""The wire between a planned rank and the process that runs it: a line of JSON, and bytes with it.

Both ends are one program's; nothing is ever unpickled.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_HEAD = struct.Struct("<I")
_CHUNK = 1 << 18

LOOK = -2
"""The number of a question to the rank: see `PlannerLine.stands`."""

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


class PlannerLine:
    """The rank's end. `ask` waits for the answer; any thread may, while others do. `stands` says
    where the threads of this rank stand, and is asked in one of them that waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unpacker = Unpacker()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[int, Message] = {}
        self._numbers = itertools.count()
        self._somebody_reads = False
        self._ended = False
        self.stands: Callable[[], Sequence[Any]] | None = None

    def tell(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> None:
        """Say something that needs no answer."""
        with self._sending:
            self._connection.sendall(packed([-1, *words], values))

    def ask(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> Message:
        """Say something, and wait for the answer. Raises ConnectionError when nobody is there."""
        number = next(self._numbers)
        alone = threading.active_count() == 1
        is_main = alone or threading.current_thread() is threading.main_thread()
        with self._sending:
            self._connection.sendall(packed([number, alone, is_main, *words], values))
        while True:
            with self._changed:
                while number not in self._answers and self._somebody_reads:
                    self._changed.wait()
                if number in self._answers:
                    return self._answers.pop(number)
                if self._ended:
                    raise ConnectionError("the process that runs the plan has gone")
                self._somebody_reads = True
            self._read()

    def _read(self) -> None:
        """Reads what is said to this rank, for whichever of its threads, up to the next answer."""
        answered = False
        while not answered:
            data = b""
            said: list[Message] = []
            try:
                data = self._connection.recv(_CHUNK)
                said = list(self._unpacker.feed(data))
            finally:
                answers = {words[0]: (words[1:], values) for words, values in said}
                looks = answers.pop(LOOK, None)
                answered = bool(answers) or not data
                if answered:  # else no thread is woken, for it is asked whether any of them moves
                    with self._changed:
                        self._answers |= answers
                        self._somebody_reads = False
                        self._ended = not data
                        self._changed.notify_all()
            if looks is not None:
                self.tell(["stands", *(self.stands() if self.stands is not None else ())])

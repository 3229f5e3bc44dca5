"""The messages that one end of a link has received and its supervisor has not taken in yet:
bounded.

A head that takes stacks, or gets a twentieth of a core, reads slower than its nodes tell. Two
bounds keep that from filling its memory, and neither loses anything. A node stops telling while so
many of its messages are on the way (`pace.Pace.ahead`): pings say how many of them were taken in
(`Intake`), and what changes meanwhile goes into one digest later, since digests are differences
from what was told last. Where a node does not keep to that, the link's thread stops reading at
`MOST_UNREAD_BYTES`; the rest waits in the sockets, and then on the nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .messages import Message

MOST_UNREAD_BYTES = 32 << 20
_EACH_BYTES = 1000
"""The size of any message, as objects."""
_TIMES_JSON = 4
"""The size of a JSON object that was read, as a multiple of its text."""


@dataclass(slots=True)
class Intake:
    """The intake of one connection of a node: how many of its messages were taken in, by the
    supervisor's loop, and refused, in the link's thread. One that comes again has another."""

    taken: int = 0
    refused: int = 0

    @property
    def total(self) -> int:
        return self.taken + self.refused


def size_of(parts: list[bytes]) -> int:
    """Returns what a message takes in memory, roughly."""
    return _EACH_BYTES + _TIMES_JSON * sum(map(len, parts[:2])) + sum(map(len, parts[2:]))


class Inbox:
    """The queue of messages. One thread puts, another one takes; each count is written by one of
    them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Message, Intake, int]] = deque()
        self._put_bytes = self._taken_bytes = 0
        self._full = False

    def put(self, number: int, message: Message, intake: Intake, size_bytes: int) -> None:
        """A message of the node with that number."""
        self._put_bytes += size_bytes
        self._waiting.append((number, message, intake, size_bytes))

    def taken(self) -> Iterator[tuple[int, Message]]:
        """Yields what has come until now, each as it is asked for."""
        for _ in range(len(self._waiting)):
            number, message, intake, size_bytes = self._waiting.popleft()
            self._taken_bytes += size_bytes
            intake.taken += 1
            yield number, message

    @property
    def full(self) -> bool:
        """Whether no more is to be put, until half of it was taken. Asked by the thread that
        puts."""
        unread_bytes = self._put_bytes - self._taken_bytes
        self._full = unread_bytes >= MOST_UNREAD_BYTES // (2 if self._full else 1)
        return self._full

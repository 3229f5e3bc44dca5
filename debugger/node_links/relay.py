"""A node that others go through to the head: it hands on what they say, and does not read it.

In a thread of its own it listens as the head does, for nodes whose keys the head has named, asks
each whether it is there, and compares its clock with theirs. To the head it tells of all together:
who has fallen silent, and what was measured anew. What is of a node below has two parts before it,
`BELOW` and a number of the connection, its channel; a channel begins with a hello, with which goes
the key that the node has proved. So each hop is authenticated and encrypted by itself: who is a
relay can read what goes through it, and could speak for those below it, as any node can for itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from .head import Listener, Node, Route
from .limits import PING_EVERY_S
from .link import resend_steadily
from .messages import Message, MessageError, message_of
from .tree import BELOW

MOST_ON_THE_WAY_BYTES = 8 << 20
"""Handed on, and not taken in by the head yet; while there is more nothing is read."""


class Relay(Listener):
    """`up` takes what is to go to the head, from this thread; `head_silent_s`: for how long that
    has said nothing. Raises OSError where it cannot listen."""

    def __init__(
        self,
        address: str,
        say: Callable[[str], None],
        up: Callable[[list[bytes]], None],
        head_silent_s: Callable[[], float],
    ) -> None:
        self._up = up
        self._head_silent_s = head_silent_s
        self._channels = 0
        self._on_the_way: dict[int, deque[int]] = {}
        self._on_the_way_bytes = 0
        self._sent: dict[int, int] = {}
        self._offsets_told: dict[int, tuple[int, int]] = {}
        self._told_s = 0.0
        super().__init__(address, "", say)

    # -- from the thread of the node's own connection ------------------------------------------

    def down(self, channel: bytes, parts: list[bytes]) -> None:
        """To the node of that channel."""
        if channel.isdigit() and len(channel) < 10:
            self.later(lambda: self._send_parts(int(channel), parts))

    def taken(self, rows: Any) -> None:
        """How many messages of each channel the head has taken in."""
        if isinstance(rows, list):
            self.later(lambda: self._taken_in(rows))

    def begin_anew(self) -> None:
        """The way to the head has broken, and is there again: it knows none of the channels."""
        self.later(lambda: self._broadcast(Message("hello")))

    @property
    def empty(self) -> bool:
        """Whether nobody is below it any more."""
        return all(node.left for node in list(self.nodes.values()))

    # -- in the thread -------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        return self._on_the_way_bytes >= MOST_ON_THE_WAY_BYTES

    def _happened(self, told: Mapping[str, Any]) -> None:
        if told["event"] == zmq.EVENT_ACCEPTED:
            resend_steadily(told["value"])  # who is refused here goes to the head, and hears why

    def _take(self, sender: zmq.Frame, parts: list[bytes]) -> None:
        route: Route = (sender.bytes,)
        channel = self._numbers.get(route)
        if not 2 <= len(parts) <= 3:
            return
        if parts[0] == b"hello":
            key, address = sender.get("User-Id"), sender.get("Peer-Address")
            self._opened(route, channel, [*parts[:2], f"{key} {address}".encode()])
        elif channel is None:
            self._send_by(route, Message("hello").parts())
        else:
            node = self.nodes[channel]
            self._heard(node)
            if parts[0] == b"pong":
                self._compare(node, parts)
                return
            node.left = node.left or parts[0] == b"bye"
            self._hand_on(channel, parts)

    def _opened(self, route: Route, channel: int | None, hello: list[bytes]) -> None:
        if channel is None:
            self._channels += 1
            channel = self._channels
            self.nodes[channel] = Node(channel, "", "")
            self._set_route(channel, route)
        node = self.nodes[channel]
        self._heard(node)
        self._forget_the_way(channel)
        self._offsets_told.pop(channel, None)
        node.intake.taken = 0
        self._hand_on(channel, hello)
        self._send(channel, self._ping(node))
        node.heard.asked(self._listening.total_s)

    def _hand_on(self, channel: int, parts: list[bytes]) -> None:
        size_bytes = sum(map(len, parts))
        self._sent[channel] = self._sent.get(channel, 0) + 1
        self._on_the_way.setdefault(channel, deque()).append(size_bytes)
        self._on_the_way_bytes += size_bytes
        self._up([BELOW, str(channel).encode(), *parts])

    def _forget_the_way(self, channel: int) -> None:
        self._on_the_way_bytes -= sum(self._on_the_way.pop(channel, ()))
        self._sent.pop(channel, None)

    def _taken_in(self, rows: list[Any]) -> None:
        for row in rows:
            if not isinstance(row, list) or len(row) != 2 or {*map(type, row)} != {int}:
                continue
            channel, taken = row
            node = self.nodes.get(channel)
            if node is None:
                continue
            node.intake.taken = taken
            waiting = self._on_the_way.get(channel, deque())
            while waiting and len(waiting) > self._sent[channel] - taken:
                self._on_the_way_bytes -= waiting.popleft()

    @staticmethod
    def _compare(node: Node, parts: list[bytes]) -> None:
        try:
            data = message_of(parts).data
        except MessageError:
            return
        sent, theirs = data.get("t"), data.get("n")
        if type(sent) is int and type(theirs) is int:
            node.offset.exchanged(sent, theirs, node.heard_ns)

    def _ping(self, node: Node) -> Message:
        head_s = round(self._head_silent_s(), 3)
        return Message("ping", {**super()._ping(node).data, "head_s": head_s})

    def _tick(self) -> None:
        super()._tick()
        now_s = time.monotonic()
        if now_s - self._told_s < PING_EVERY_S:
            return
        self._told_s = now_s
        silent, offsets = [], []
        for channel, node in list(self.nodes.items()):
            if node.silent:
                if not node.left:
                    silent.append(channel)
                self._forget(channel)
                continue
            clock = (node.offset.add_ns, node.offset.error_ns)
            if node.offset.known and self._offsets_told.get(channel) != clock:
                self._offsets_told[channel] = clock
                offsets.append([channel, *clock])
        self._up(Message("heard", {"silent": silent, "offsets": offsets}).parts())

    def _forget(self, channel: int) -> None:
        """Who comes again does so with a hello."""
        self._forget_the_way(channel)
        self._offsets_told.pop(channel, None)
        del self.nodes[channel]
        self._drop_route(channel)

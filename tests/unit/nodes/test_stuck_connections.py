"""A connection on which nothing arrives any more, while the network would take a new one: as TCP
leaves it for seconds after an interruption, where much was on the way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from distdebug.nodes import limits
from distdebug.nodes.connection import Connection
from distdebug.nodes.interfaces import LOOPBACK
from distdebug.nodes.keys import Offer
from distdebug.nodes.limits import LATE_S, LOST_AFTER_S
from distdebug.nodes.listener import Listener
from distdebug.nodes.messages import Message
from distdebug.nodes.presence import Standing
from tests.support.waiting import until
from tests.unit.nodes.test_links import HELLO


class Network:
    """Hands on what goes over any number of connections; of those that there are when it is
    `stuck`, nothing, or nothing to the head, until it `flows` again."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._may_pass: list[tuple[threading.Event, threading.Event]] = []
        """Of each connection: to the head, and from it."""
        self.takes_new = True
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def made(self) -> int:
        """So many connections were made."""
        return len(self._may_pass)

    def stuck(self, both_ways: bool = True) -> None:
        for to_the_head, from_it in self._may_pass:
            to_the_head.clear()
            if both_ways:
                from_it.clear()

    def flows(self, oldest: bool = False) -> None:
        """All of them, or only the first that was made."""
        for both in self._may_pass[:1] if oldest else self._may_pass:
            for one in both:
                one.set()

    def close(self) -> None:
        self.flows()
        for one in (self._listener, *self._open):
            one.close()

    def _serve(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection((LOOPBACK, self._to))
            both = (threading.Event(), threading.Event())
            self._may_pass.append(both)
            self._open += [here, there]
            if self.takes_new:
                for one in both:
                    one.set()
            for ends, one in zip(((here, there), (there, here)), both, strict=True):
                threading.Thread(target=_hand_on, args=(*ends, one), daemon=True).start()


def _hand_on(come: socket.socket, goes: socket.socket, may_pass: threading.Event) -> None:
    try:
        while data := come.recv(1 << 16):
            may_pass.wait()
            goes.sendall(data)
        may_pass.wait()
        goes.shutdown(socket.SHUT_WR)
    except OSError:
        return  # it is closed


class Two:
    """A head and a node, and what is between them."""

    def __init__(self, stack: ExitStack) -> None:
        self.said: list[str] = []
        self.head = Listener(LOOPBACK, "node0", self.said.append)
        self.head.welcome = {"version": "1"}
        self.network = Network(self.head.port)
        self.node = Connection(self.said.append)
        for one in (self.head, self.network, self.node):
            stack.callback(one.close)
        self.head.allow(self.node.key)
        offer = Offer(LOOPBACK, self.network.port, self.head.key, "node0")
        self.node.connect(offer, HELLO)
        until(lambda: self.node.welcome, "it was never welcomed")
        self._came: list[Message] = []

    def told(self, kind: str) -> list[Message]:
        """What has come to the head of this kind."""
        self._came += [message for _, message in self.head.received()]
        return [one for one in self._came if one.kind == kind]

    @property
    def missed(self) -> list[bool]:
        """Whether the node misses the head, and the head the node."""
        return [bool(self.node.lost), self.head.nodes[1].peer.standing is Standing.MISSED]


@pytest.fixture(name="two")
def _two() -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(stack)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is lost for want of a core."""
    monkeypatch.setattr(limits, "LOST_AFTER_S", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("both_ways", [True, False], ids=["both ways", "to the head"])
def test_a_new_connection_is_made(two: Two, both_ways: bool) -> None:
    """What is told from then on arrives; nobody takes the old connection's end for a stranger's."""
    two.network.stuck(both_ways)
    until(lambda: two.node._head.moved_s > 0, "it waits on the one that it has")
    until(lambda: two.node._left is None, "it was not welcomed again")
    two.node.send(Message("digest", {"t": 2}))
    until(lambda: two.told("digest"), "it does not get through")
    until(lambda: two.node.silent_s < LATE_S, "it does not hear the head")
    assert two.missed == [False, False]
    assert two.said == []


@pytest.mark.usefixtures("patient")
def test_who_speaks_again_is_not_left(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a new connection was made, and there is no need of it."""
    monkeypatch.setattr(limits, "SILENT_S", 60.0)
    identity = two.head._identities[1]
    two.network.takes_new = False  # the new one is made, and nothing comes over it first
    two.network.stuck()
    until(lambda: two.network.made > 1, "it waits on the one that it has")
    two.network.flows(oldest=True)
    until(lambda: two.node._second is None, "it keeps both")
    assert two.head._identities[1] == identity
    # The new one was given up before its handshake was through, which the head may take for a
    # stranger's; nothing else is said.
    assert [one for one in two.said if not one.startswith("refused a connection")] == []


@pytest.mark.parametrize("known", [True, False])
def test_who_closes_once_his_key_is_known_is_no_stranger(two: Two, known: bool) -> None:
    """ZeroMQ's thread may see that a connection was closed before it tells that it was made. The
    twin has not shown a key that is known."""
    with socket.create_server((LOOPBACK, 0)) as stands_for_it:
        two.head._happened({"event": zmq.EVENT_ACCEPTED, "value": stands_for_it.fileno()})
    two.head._keys.let_in += known
    two.head._happened({"event": zmq.EVENT_DISCONNECTED, "value": 0})
    assert len(two.said) == (0 if known else 1), two.said


def test_a_network_that_takes_no_new_connection_either(two: Two) -> None:
    """Both are missed as ever."""
    two.network.takes_new = False
    two.network.stuck()
    until(lambda: two.missed == [True, True], "somebody waits for ever")
    assert two.node.silent_s >= LOST_AFTER_S

"""The head and its nodes over real sockets: who is let in, who is refused, who falls silent."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
import zmq

from distdebug.nodes import listener as heads
from distdebug.nodes.connection import Connection
from distdebug.nodes.interfaces import LOOPBACK
from distdebug.nodes.keys import SCHEMA
from distdebug.nodes.limits import LOST_AFTER_S
from distdebug.nodes.listener import Listener, Node
from distdebug.nodes.messages import Message
from distdebug.record.reading.copies import FEW_NODES
from tests.support.waiting import until

LIMIT_S = 20.0
HELLO = {"schema": SCHEMA, "version": "1", "host": "node1"}


@pytest.fixture(name="said")
def _said() -> list[str]:
    return []


@pytest.fixture(name="head")
def _head(said: list[str]) -> Iterator[Listener]:
    listener = Listener(LOOPBACK, "node0", said.append)
    listener.welcome = {"version": "1"}
    yield listener
    listener.close()


@pytest.fixture(name="node")
def _node() -> Iterator[Callable[[], Connection]]:
    with ExitStack() as made:

        def make() -> Connection:
            connection = Connection(lambda _: None)
            made.callback(connection.close)
            return connection

        yield make


def test_a_node_of_the_job_speaks_and_is_heard(
    head: Listener, node: Callable[[], Connection]
) -> None:
    one = node()
    one.connect(head.offer, HELLO)  # the job tells its key a moment later
    head.allow(one.key)
    until(lambda: one.welcome, "it was never welcomed")
    one.send(Message("digest", {"t": 1}, b"\0" * 1000))
    found: list[Message] = []
    until(lambda: found.extend(m for _, m in head.received()) or len(found) > 1, "nothing came")
    assert [message.kind for message in found] == ["hello", "digest"]
    assert found[1].blob == b"\0" * 1000
    until(lambda: head.nodes[1].offset.known, "its clock was never compared")
    assert abs(head.nodes[1].offset.add_ns) <= head.nodes[1].offset.error_ns + 1_000_000
    head.broadcast(Message("verdict", {"kind": "deadlock"}))
    until(lambda: any(m.kind == "verdict" for m in one.received()), "no verdict came")
    assert not one.lost


def test_a_stranger_gets_no_further_than_the_handshake(
    head: Listener, node: Callable[[], Connection], said: list[str]
) -> None:
    with socket.create_connection((LOOPBACK, head.port)) as connection:
        connection.settimeout(LIMIT_S)
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        with suppress(ConnectionResetError):
            while connection.recv(4096):
                pass  # until it is closed
    until(lambda: said, "nobody said that a stranger was refused")
    assert "not distdebug's protocol" in said[0]
    one = node()
    head.allow(one.key)
    one.connect(head.offer, HELLO)
    until(lambda: one.welcome, "the stranger has harmed the head")


def test_a_node_that_takes_another_for_the_head(
    head: Listener, node: Callable[[], Connection]
) -> None:
    one, other = node(), node()
    head.allow(one.key)
    one.connect(replace(head.offer, key=other.key), HELLO)
    until(lambda: one.lost, "it waits for ever")
    assert one.welcome is None
    assert not head.nodes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "2"}, "it runs distdebug 2, the head 1: install one version on all nodes"),
        ({"schema": "distdebug.nodes/9"}, "it speaks 'distdebug.nodes/9'"),
    ],
)
def test_another_version_is_told(
    head: Listener,
    node: Callable[[], Connection],
    said: list[str],
    change: dict[str, str],
    reason: str,
) -> None:
    one = node()
    head.allow(one.key)
    one.connect(head.offer, HELLO | change)
    until(lambda: one.lost, "it was never told")
    assert reason in one.lost
    assert reason in said[0]
    assert not head.nodes


def test_what_comes_before_the_hello_is_no_reason_to_refuse(
    head: Listener, node: Callable[[], Connection], said: list[str]
) -> None:
    """A digest may be handed to a connection that has just come again; by its hello the head knows
    the node, which then tells all anew."""
    one = node()
    head.allow(one.key)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.curve_publickey, dealer.curve_secretkey = one.key.encode(), one._secret
        dealer.curve_serverkey = head.key.encode()
        dealer.connect(head.offer.endpoint)
        dealer.send_multipart(Message("digest", {"serial": 9, "t": 1}).parts())
        dealer.send_multipart(Message("hello", HELLO).parts())
        assert dealer.poll(LIMIT_S * 1000)
        assert dealer.recv_multipart()[0] == b"welcome"
    found: list[Message] = []
    # The welcome is sent before the head's loop is handed what came.
    until(lambda: found.extend(m for _, m in head.received()) or found, "no hello")
    assert [message.kind for message in found] == ["hello"]
    assert said == []


def test_a_node_that_was_suspended_knows_that_it_was_given_up(
    head: Listener, node: Callable[[], Connection]
) -> None:
    """The head may be gone when it goes on: the head was not silent, the node was not there."""
    one = node()
    head.allow(one.key)
    one.connect(head.offer, HELLO)
    until(lambda: one.welcome, "it was never welcomed")
    stands, resumes = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        resumes.wait(LIMIT_S)

    one.later(stand)  # its thread does not run
    assert stands.wait(LIMIT_S)
    time.sleep(LOST_AFTER_S)  # the silence that is measured
    head.close()
    assert not one.lost, "it has not listened"
    resumes.set()
    until(lambda: one.lost, "nobody missed the head")
    assert "this node was not run for" in one.lost
    assert "has given it up" in one.lost


def test_who_falls_silent_is_missed(head: Listener, node: Callable[[], Connection]) -> None:
    one = node()
    head.allow(one.key)
    one.connect(head.offer, HELLO)
    until(lambda: one.welcome, "it was never welcomed")
    began_s = time.monotonic()
    head.close()
    until(lambda: one.lost, "nobody missed the head")
    assert time.monotonic() - began_s >= LOST_AFTER_S - 1.0
    # Where the node's own thread was given no core for long, that is what it says.
    assert ("was not run for" if one.absent_s else "has said nothing for") in one.lost


def test_it_listens_on_one_address_only(head: Listener) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", head.port), timeout=5)


@pytest.mark.parametrize(
    ("nodes", "since_ping_s", "rest_s"),
    [
        (FEW_NODES, 0.1, 0.0),
        (FEW_NODES + 1, 0.1, heads.REST_S),
        (FEW_NODES + 1, 0.01, 0.0),
        (FEW_NODES + 1, heads.PING_EVERY_S - 0.01, 0.01),
        (FEW_NODES + 1, 1.0, 0.0),
    ],
    ids=["of few at once", "of many together", "an answer at once", "until a ping", "it is late"],
)
def test_what_many_nodes_say_between_two_pings_is_read_together(
    monkeypatch: pytest.MonkeyPatch, nodes: int, since_ping_s: float, rest_s: float
) -> None:
    """What may be the answer to a ping is not: clocks are compared by when it comes."""
    listener = Listener(LOOPBACK, "node0", lambda _: None)
    listener.close()  # its thread has ended: nobody else sets what follows
    listener.nodes = {number: Node(number, "", "") for number in range(nodes)}
    listener._pinged_s = 1000.0
    monkeypatch.setattr(heads.time, "monotonic", lambda: 1000.0 + since_ping_s)
    assert listener._rest_s() == pytest.approx(rest_s)


def test_what_is_to_be_sent_ends_the_rest(
    monkeypatch: pytest.MonkeyPatch, head: Listener, node: Callable[[], Connection]
) -> None:
    """However long that is."""
    one = node()
    one.connect(head.offer, HELLO)
    head.allow(one.key)
    until(lambda: one.welcome, "it was never welcomed")
    rests = threading.Event()

    def rest_s() -> float:
        rests.set()
        return 3600.0

    monkeypatch.setattr(head, "_rest_s", rest_s)
    assert rests.wait(LIMIT_S)
    head.broadcast(Message("verdict", {"kind": "deadlock"}))
    until(lambda: any(m.kind == "verdict" for m in one.received()), "no verdict came")


def test_a_head_may_have_a_connection_for_each_node(said: list[str]) -> None:
    """The usual soft limit of 1,024 open files is less than the nodes of a large job."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert before[1] == resource.RLIM_INFINITY or before[1] > 1024, "this host allows no more"
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        Listener(LOOPBACK, "node0", said.append).close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = heads.MOST_NODES + heads.OTHER_DESCRIPTORS
        assert soft == (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

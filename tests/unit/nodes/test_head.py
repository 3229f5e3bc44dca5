"""What the head makes of its nodes' first words: by which clock they are read, who is awaited."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

from debugger.nodes.head import Listener, Node
from debugger.nodes.messages import Message
from debugger.nodes.patches import packed
from debugger.record import steady_clock
from debugger.record.run_directory import RunDirectory
from debugger.supervisor.job.head import Head

AHEAD_NS = 10_000 * 10**9
"""A node that was switched on earlier: so much more its monotonic clock shows."""
MOMENT_NS = 10 * 10**9


class Heard:
    """What has come over the network, as `Listener` gives it."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.admitted = 1
        self.came: list[tuple[int, Message]] = []

    def received(self) -> list[tuple[int, Message]]:
        found, self.came = self.came, []
        return found

    def broadcast(self, message: Message) -> None:
        pass

    def send(self, _number: int, _message: Message) -> None:
        pass

    def joins(self) -> Node:
        node = Node(1, "key", "node1", heard_ns=time.monotonic_ns())
        self.nodes[1] = node
        self.came.append((1, Message("hello")))
        return node

    def digest(self, serial: int) -> None:
        data = {"serial": serial, "t": time.monotonic_ns() + AHEAD_NS}
        self.came.append((1, Message("digest", data, packed([]))))


def made(heard: Heard, tmp_path: Path) -> Head:
    directory = RunDirectory.create(tmp_path / ".distdebug")
    return Head(cast(Listener, heard), directory, lambda _: None)


def exchanged(node: Node) -> None:
    now_ns = time.monotonic_ns()
    node.offset.exchanged(now_ns, now_ns + AHEAD_NS, now_ns)


def test_a_digest_that_comes_with_the_first_exchange_is_read_by_its_nodes_clock(
    tmp_path: Path,
) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    heard.digest(1)
    head.take()
    far = head.nodes[1]
    assert far.serial == 1
    assert abs(far.told_ns - steady_clock.now_ns()) < MOMENT_NS
    assert not head.settled(steady_clock.now_ns() + MOMENT_NS)


def test_a_digest_that_comes_before_the_first_exchange_waits_for_it(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    node = heard.joins()
    heard.digest(1)
    head.take()
    assert head.nodes[1].serial == 0
    exchanged(node)
    heard.digest(2)
    head.take()
    assert head.nodes[1].serial == 2
    assert abs(head.nodes[1].told_ns - steady_clock.now_ns()) < MOMENT_NS


def test_no_verdict_before_a_node_that_was_let_in_has_come(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    began_ns = steady_clock.now_ns()
    assert not head.settled(began_ns)
    assert not head.all_over
    exchanged(heard.joins())
    heard.digest(1)
    head.take()
    assert head.settled(began_ns)

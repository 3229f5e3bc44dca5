"""What the head makes of its nodes' first words: by which clock they are read, who is awaited."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from debugger.nodes.head import Listener, Node
from debugger.nodes.messages import Message
from debugger.nodes.mirror import Mirror
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
        self.asked: list[int] = []
        self.told: list[str] = []

    def received(self) -> list[tuple[int, Message]]:
        found, self.came = self.came, []
        return found

    def broadcast(self, message: Message) -> None:
        if message.kind == "fill":
            self.asked.append(message.data["number"])
        elif message.kind == "anew":
            self.told.append(message.kind)

    def send(self, _number: int, message: Message) -> None:
        self.broadcast(message)

    def joins(self) -> Node:
        node = Node(1, "key", "node1", heard_ns=time.monotonic_ns())
        self.nodes[1] = node
        self.came.append((1, Message("hello")))
        return node

    def digest(self, serial: int, filled: int = 0, anew: bool = False) -> None:
        told_ns = time.monotonic_ns() + AHEAD_NS
        data = {"serial": serial, "t": told_ns, "filled": filled, "anew": anew}
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
    head.take()
    assert heard.asked == [1, 1], "who comes later is asked, too"
    heard.digest(1, filled=1)
    head.take()
    assert head.settled(began_ns)


def test_no_verdict_by_a_digest_that_was_on_its_way_when_all_calls_were_asked_for(
    tmp_path: Path,
) -> None:
    """It has the newest calls of a rank that calls all the time, and the fault may be older."""
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    began_ns = steady_clock.now_ns()
    heard.digest(1)
    head.take()
    assert not head.settled(began_ns)
    assert heard.asked == [1]
    heard.digest(2, filled=1)
    head.take()
    assert head.settled(began_ns)
    assert not head.settled(began_ns + 1), "a later candidate asks anew"
    assert heard.asked == [1, 2]


def test_a_node_whose_command_is_over_owes_no_calls(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    began_ns = steady_clock.now_ns()
    heard.digest(1)
    heard.came.append((1, Message("ended", {"status": 0, "over": True})))
    head.take()
    assert head.settled(began_ns)


def test_no_verdict_on_a_node_of_which_a_digest_was_lost(tmp_path: Path) -> None:
    """What it changed is not known: the node tells everything once more before anybody is judged
    by what is known of it."""
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    began_ns = steady_clock.now_ns()
    heard.digest(1, filled=1)
    head.take()
    assert head.settled(began_ns)
    heard.digest(3, filled=1)
    head.take()
    assert not head.settled(began_ns), "the second one never came"
    assert heard.told == ["anew"]
    heard.digest(4, filled=1)
    head.take()
    assert not head.settled(began_ns), "that does not have what the second one had"
    heard.digest(5, filled=1, anew=True)
    head.take()
    assert head.settled(began_ns)


def test_no_verdict_on_a_node_whose_digest_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as when all descriptors are in use, for a moment."""
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    began_ns = steady_clock.now_ns()
    heard.digest(1, filled=1)
    head.take()
    assert head.settled(began_ns)

    def no_room(_self: Mirror, _patches: object, _urgent: bool) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "apply", no_room)
        heard.digest(2, filled=1)
        heard.digest(3, filled=1)
        head.take()
    assert not head.settled(began_ns)
    heard.digest(4, filled=1, anew=True)
    head.take()
    assert head.settled(began_ns)

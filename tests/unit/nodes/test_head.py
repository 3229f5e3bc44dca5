"""What the head makes of its nodes' first words: by which clock they are read, who is awaited."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from distdebug.nodes.head import Head
from distdebug.nodes.listener import Listener, Node
from distdebug.nodes.messages import Message, Patch, packed
from distdebug.nodes.mirror import Mirror
from distdebug.nodes.missing import lost_nodes
from distdebug.nodes.presence import Event
from distdebug.nodes.several import Several
from distdebug.record import layout, steady_clock
from distdebug.record.reading.copies import own_name
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import LostNode

AHEAD_NS = 10_000 * 10**9
"""A node that was switched on earlier: so much more its monotonic clock shows."""
MOMENT_NS = 10 * 10**9


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for nodes that come late, but a test may be given no core for long."""
    monkeypatch.setattr("distdebug.nodes.head.MEETING_S", 60.0)


class Heard:
    """What has come over the network, as `Listener` gives it."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.admitted = 1
        self.absent_s = 0.0
        self.came: list[tuple[int, Message]] = []
        self.asked: list[int] = []
        self.files: list[list[int] | None] = []
        self.told: list[str] = []

    def received(self) -> list[tuple[int, Message]]:
        found, self.came = self.came, []
        return found

    def stirred(self) -> list[int]:
        return list(self.nodes)

    def give_up(self, number: int) -> None:
        self.nodes[number].peer.on(Event.BE_GIVEN_UP)

    def broadcast(self, message: Message) -> None:
        if message.kind == "fill":
            self.asked.append(message.data["number"])
            self.files.append(message.data.get("files"))
        elif message.kind in ("anew", "verdict", "stop", "end", "report"):
            self.told.append(message.kind)

    def send(self, _number: int, message: Message) -> None:
        self.broadcast(message)

    def joins(self, number: int = 1, host: str = "node1") -> Node:
        node = Node(number, f"key{number}", host, heard_ns=time.monotonic_ns())
        node.peer.spoke(0.0)
        self.nodes[number] = node
        self.came.append((number, Message("hello")))
        return node

    def digest(self, serial: int, filled: int = 0, anew: bool = False) -> None:
        told_ns = time.monotonic_ns() + AHEAD_NS
        data = {"serial": serial, "t": told_ns, "filled": filled, "anew": anew}
        self.came.append((1, Message("digest", data, packed([]))))


def made(heard: Heard, tmp_path: Path) -> Head:
    directory = RunDirectory.create(tmp_path / ".distdebug")
    return Head(cast(Listener, heard), directory, lambda _: None)


def lost(head: Head, told: Mapping[int, Sequence[int]]) -> tuple[LostNode, ...]:
    return lost_nodes(head, Several(2, 2), told, ()).nodes


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


def test_all_have_told_when_each_has_said_how_its_ranks_are_since_the_first_said_more(
    tmp_path: Path,
) -> None:
    """What they say that their ranks go on calling is an answer, and no news; what was on its way
    since before is none."""
    heard = Heard()
    head = made(heard, tmp_path)
    for number in (1, 2, 3):
        exchanged(heard.joins(number))
    serials = dict.fromkeys((1, 2, 3), 0)

    def tell(number: int, told_s: float, **data: object) -> None:
        serials[number] += 1
        told_ns = now_ns + int(told_s * 1e9) + AHEAD_NS
        data |= {"serial": serials[number], "t": told_ns, "files": [[0, "0.flight", 1]]}
        patches = packed([Patch(0, layout.DYNAMIC_OFFSET, bytes([serials[number]]))])
        heard.came.append((number, Message("digest", data, patches)))
        head.take()

    now_ns = time.monotonic_ns()
    for number in (1, 2, 3):
        tell(number, 1.0, busy=True)
    assert not head.all_told, "nobody has said more"
    tell(1, 3.0)
    tell(2, 2.0, busy=True)
    tell(3, 3.5)
    assert not head.all_told, "of node 2 it is not known how it was then"
    tell(2, 3.1, busy=True)
    assert head.all_told
    head.stirred_ns = 0  # they were looked at
    assert not head.all_told
    tell(2, 5.0)
    head.nodes[3].lost_ns = 1
    assert not head.all_told
    tell(1, 5.1)
    assert head.all_told, "of node 3, which is lost, nothing more will come"


def test_how_well_each_nodes_clock_is_known(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    heard.joins(2)  # with which there was no exchange yet
    node = heard.joins()
    now_ns = time.monotonic_ns()
    node.offset.exchanged(now_ns, now_ns + AHEAD_NS, now_ns + 6_000_000)
    head.take()
    assert head.clock_errors_ns() == {1: 3_000_000}


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


ENDED = Message("ended", {"status": 3 << 8, "over": True, "left": False})


def test_an_end_does_not_overtake_what_waits_for_the_nodes_clock(tmp_path: Path) -> None:
    """Of a run that is over in a moment: how its ranks ended stands in the digest."""
    heard = Heard()
    head = made(heard, tmp_path)
    node = heard.joins()
    heard.digest(1)
    heard.came.append((1, ENDED))
    head.take()
    assert not head.all_over, "nothing of how its ranks ended is known"
    exchanged(node)
    head.take()
    assert head.nodes[1].serial == 1
    assert head.all_over
    assert head.worst is not None
    assert head.worst.code == 3


def test_a_node_that_leaves_before_its_clock_is_known_is_not_lost(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    heard.joins()
    heard.digest(1)
    heard.came += [(1, ENDED), (1, Message("bye"))]
    head.take()
    assert head.all_over
    assert lost(head, {}) == ()


def test_what_waits_for_the_nodes_clock_may_be_nonsense(tmp_path: Path) -> None:
    """It is refused as any other, and what came behind it is read."""
    heard = Heard()
    head = made(heard, tmp_path)
    node = heard.joins()
    heard.came += [(1, Message("injected", {"plan": 1})), (1, ENDED)]
    head.take()
    exchanged(node)
    head.take()
    assert head.all_over


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


def test_what_is_asked_besides_is_waited_for_and_asked_of_who_comes_again(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    head.take()
    directory = tmp_path / ".distdebug"
    first, second = (directory / f"node1-pid-{pid}.flight" for pid in (7, 8))
    for number, path in enumerate((first, second)):
        head.nodes[1].mirror.announced(number, own_name(path.name), 1)
    began_ns = steady_clock.now_ns()
    assert not head.settled(began_ns, [first])
    heard.digest(1, filled=1)
    head.take()
    assert head.settled(began_ns)
    head.ask_more([second])
    assert not head.settled(began_ns)
    heard.came.append((1, Message("hello")))
    head.take()
    assert heard.files == [[0], [1], [0, 1]]
    heard.digest(2, filled=2)
    head.take()
    assert head.settled(began_ns)
    assert heard.asked == [1, 2, 2]


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


def test_who_comes_again_is_told_what_was_decided(tmp_path: Path) -> None:
    """It was told while its connection was broken: it would wait for ever."""
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    head.take()
    heard.told.clear()
    head.tell({"kind": "deadlock"})
    head.report({"findings": [], "ranks": {}})
    assert heard.told == ["verdict", "report"]
    heard.came.append((1, Message("hello")))
    head.take()
    assert heard.told == ["verdict", "report"] * 2


def test_a_node_that_goes_before_its_ranks_have_ended_is_lost(tmp_path: Path) -> None:
    """It has given the head up, say: that is no good order."""
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    heard.came.append((1, Message("bye")))
    head.take()
    (node,) = lost(head, {1: [2, 3]})
    assert (node.host, node.ranks) == ("node1", (2, 3))


def test_a_head_that_was_suspended_knows_that_it_was_given_up(tmp_path: Path) -> None:
    """What its ranks say then, connections that are closed, follows from that."""
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    heard.absent_s = 5.0
    heard.came.append((1, Message("bye")))
    head.take()
    (node,) = lost(head, {0: [0, 1], 1: [2, 3]})
    assert (node.host, node.ranks) == (socket.gethostname(), (0, 1))
    assert 4.0 < (steady_clock.now_ns() - node.heard_ns) / 1e9 < 60.0
    assert head.all_over


def test_a_node_that_goes_when_its_ranks_have_ended_is_not_lost(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    heard.came.append((1, Message("ended", {"status": 0, "over": True, "left": False})))
    heard.came.append((1, Message("bye")))
    head.take()
    assert lost(head, {1: [2, 3]}) == ()
    assert head.all_over


def test_a_command_that_has_left_ranks_behind_is_known(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    heard.came.append((1, Message("ended", {"status": 9, "over": False, "left": True})))
    head.take()
    assert head.abandoned is not None
    status, who = head.abandoned
    assert (status.signal, who) == (9, "node 1 (node1)")
    heard.came.append((1, Message("ended", {"status": 9, "over": True, "left": False})))
    head.take()
    assert head.abandoned is None


def test_supervisors_of_one_host_are_lost_together(tmp_path: Path) -> None:
    """Under mpiexec each rank has one: the first that is missed is not the whole verdict."""
    heard = Heard()
    head = made(heard, tmp_path)
    one, other, elsewhere = heard.joins(1), heard.joins(2), heard.joins(3, "node2")
    other.heard_ns = elsewhere.heard_ns = one.heard_ns
    heard.admitted = 3
    for node in (one, other, elsewhere):
        exchanged(node)
    head.take()
    since_ns = steady_clock.now_ns() - MOMENT_NS
    for number in (1, 2, 3):
        told = {"serial": 1, "t": time.monotonic_ns() + AHEAD_NS, "filled": 1}
        heard.came.append((number, Message("digest", told, packed([]))))
    head.take()
    assert head.settled(since_ns)
    one.peer.on(Event.BE_MISSED)
    head.take()
    assert not head.settled(since_ns), "the other one has said nothing since, neither"
    other.heard_ns += 2 * 10**9
    assert head.settled(since_ns), "it speaks: the host is there"


def test_a_digest_in_parts_is_told_when_its_last_part_has_come(tmp_path: Path) -> None:
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    began_ns = steady_clock.now_ns()
    heard.digest(1, filled=1)
    head.take()
    assert head.settled(began_ns)
    later_ns = steady_clock.now_ns()
    assert not head.settled(later_ns)
    heard.came.append((1, Message("digest", {"serial": 2, "more": True}, packed([]))))
    head.take()
    assert not head.settled(later_ns)
    heard.digest(3, filled=2)
    head.take()
    assert head.settled(later_ns)


def test_the_end_waits_for_the_ranks_of_other_nodes_as_long_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distdebug.nodes.head.ACTS_S", 0.0)
    heard = Heard()
    head = made(heard, tmp_path)
    exchanged(heard.joins())
    head.take()
    assert not head.end()
    calls = []
    assert not head.end(60.0, lambda: len(calls) > 3 or calls.append(0) is not None)
    assert len(calls) > 3, "Ctrl-C ends it at once"
    heard.came.append((1, Message("ended", {"status": 0, "over": True})))
    assert head.end(60.0)

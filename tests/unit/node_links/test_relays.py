"""Nodes below a relay: the head hears them as it hears the others, and so do they it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.node_links import link as link_module
from distdebug.node_links.agreed_keys import head_pair, node_pair
from distdebug.node_links.clocks import Offset
from distdebug.node_links.head import Listener, Node
from distdebug.node_links.interfaces import LOOPBACK
from distdebug.node_links.limits import LOST_AFTER_S
from distdebug.node_links.link import Link
from distdebug.node_links.member import SILENT_S, Connection
from distdebug.node_links.messages import Message
from distdebug.node_links.pace import pace_for
from distdebug.node_links.relay import Relay
from distdebug.node_links.sampler import Sampler
from distdebug.node_links.tree import Tree
from distdebug.record.snapshot import Process
from tests.support.waiting import until
from tests.unit.node_links.test_links import HELLO
from tests.unit.node_links.test_reconnections import Between
from tests.unit.record.test_flight import Author

FAN_IN = 2


class Job:
    """A head, and nodes of which no more than two speak to it, or to one of these."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.said: list[str] = []
        self.head = Listener(LOOPBACK, "node0", self.said.append)
        stack.callback(self.head.close)
        self.head.welcome = {"version": "1"}
        self.nodes: list[Connection] = []
        self.heard: dict[int, list[Message]] = {}

    def join(self, count: int) -> None:
        """One after the other, until each is where it belongs."""
        self.meet(count)
        last = len(self.nodes)
        until(lambda: self.below == list(range(FAN_IN + 1, last + 1)), f"below: {self.below}")

    def meet(self, count: int) -> None:
        """One after the other, until the head has welcomed each."""
        for _ in range(count):
            node = Connection(self.said.append)
            self._stack.callback(node.close)
            self.head.allow(node.key)
            node.connect(self.head.offer, HELLO)
            self.nodes.append(node)
            until(lambda node=node: node.welcome, "it was never welcomed")  # type: ignore[misc]

    @property
    def below(self) -> list[int]:
        """Who speaks through a relay."""
        return sorted(one for one, route in self.head._routes.items() if len(route) > 1)

    def take(self) -> None:
        for number, message in self.head.received():
            self.heard.setdefault(number, []).append(message)

    def told(self, number: int, kind: str) -> list[Message]:
        self.take()
        return [one for one in self.heard.get(number, ()) if one.kind == kind]


@pytest.fixture(name="job")
def _job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("DISTDEBUG_FAN_IN", str(FAN_IN))
    with ExitStack() as stack:
        yield Job(stack)
        monkeypatch.setattr(link_module, "LINGER_MS", 100)  # who is lost takes nothing


def off(*links: Link | None) -> None:
    """As if their hosts had lost their power: nothing more is said, and nothing closed."""
    for link in links:
        if link is not None:
            link._run_calls = lambda: time.sleep(3600)  # type: ignore[method-assign]


def missed_at_s(node: Connection) -> float:
    """When it misses the head for which it waits now, by its own `Listening`, whenever somebody
    looks: who does may be given no core for a while."""
    return node._heard.last_s + LOST_AFTER_S


def received(node: Connection, into: list[Message]) -> Callable[[], list[str]]:
    def kinds() -> list[str]:
        into.extend(node.received())
        return [one.kind for one in into]

    return kinds


def test_nodes_below_a_relay_speak_and_are_heard(job: Job) -> None:
    job.join(5)
    assert job.head._tree.relay_of(3) == job.head._tree.relay_of(4) == 1
    assert job.head._tree.relay_of(5) == 2
    for place, node in enumerate(job.nodes, 1):
        node.send(Message("digest", {"t": place}, bytes(1000 * place)))
    for number in range(1, 6):
        until(lambda number=number: job.told(number, "digest"), "nothing came")  # type: ignore[misc]
        (digest,) = job.told(number, "digest")
        assert (digest.data["t"], len(digest.blob)) == (number, 1000 * number)
    job.head.broadcast(Message("verdict", {"kind": "deadlock"}))
    job.head.send(5, Message("fill", {"number": 7}))
    for place, node in enumerate(job.nodes, 1):
        into: list[Message] = []
        kinds = received(node, into)
        until(lambda kinds=kinds: "verdict" in kinds(), "no verdict came")  # type: ignore[misc]
        if place == 5:
            until(lambda kinds=kinds: "fill" in kinds(), "it is not asked")  # type: ignore[misc]
        assert ("fill" in kinds()) == (place == 5)
        assert not node.lost
    until(lambda: all(node.ahead <= 0 for node in job.nodes), "what was taken in is not told")
    assert job.said == []


def test_clocks_of_nodes_below_a_relay_are_known(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of two offsets, with the sum of their errors."""
    told: list[tuple[int, int]] = []
    measured = Offset.measured

    def keep(self: Offset, add_ns: int, error_ns: int) -> bool:
        taken = measured(self, add_ns, error_ns)
        told.append((add_ns, error_ns))
        return taken

    job.join(2)
    until(lambda: all(one.offset.known for one in job.head.nodes.values()), "no clock is known")
    monkeypatch.setattr(Listener, "_tick", Link._tick)  # the head itself compares no clocks now
    job.head.nodes[1].offset.add_ns, job.head.nodes[1].offset.error_ns = 10**15, 7
    job.head._tree.place(3, lambda number: number == 1)
    monkeypatch.setattr(Offset, "measured", keep)
    job.head.nodes[3] = Node(3, "", "")
    job.head._set_route(3, (*job.head._routes[1], b"9"))
    job.head.later(
        lambda: job.head._heard_below(
            job.head.nodes[1], {"silent": [], "offsets": [[9, 5, 3], [8, 1, 1], [9, 1, -1]]}
        )
    )
    until(lambda: (10**15 + 5, 10) in told, "it is not told")
    assert job.head.nodes[3].offset.add_ns == 10**15 + 5
    assert job.head.nodes[3].offset.error_ns == 10


def test_who_is_told_as_silent_stays_so_until_it_speaks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relay says that once, and then no more of it, while the head may be busy elsewhere."""
    job.join(2)
    monkeypatch.setattr(Listener, "_tick", Link._tick)
    head = job.head
    head._tree.place(3, lambda number: number == 1)
    head.nodes[3] = Node(3, "", "")
    head._set_route(3, (*head._routes[1], b"9"))
    head.stirred()
    for silent in ([9], [], []):
        told = {"silent": silent, "offsets": []}
        head.later(lambda told=told: head._heard_below(head.nodes[1], told))  # type: ignore[misc]
    done: list[bool] = []
    head.later(lambda: done.append(True))
    until(lambda: done, "it was not told")
    assert head.nodes[3].silent
    assert 3 in head.stirred()
    head.later(lambda: head._heard(head.nodes[3]))
    until(lambda: not head.nodes[3].silent, "it has spoken")


def test_a_node_below_a_relay_falls_silent_and_nobody_else(job: Job) -> None:
    job.join(4)
    relay = job.nodes[0]._relay
    assert relay is not None
    below = list(relay.nodes.values())  # in the order in which they came
    off(job.nodes[2])
    until(lambda: job.head.nodes[3].silent, "it is not missed")
    silent_s = [one.heard.silent_s(relay._listening.total_s) for one in below]
    assert max(silent_s) > LOST_AFTER_S
    assert [number for number, one in job.head.nodes.items() if one.silent] == [3]


def test_a_relay_that_is_lost_takes_nobody_with_it(job: Job) -> None:
    """Those below it come to the head itself, and go on telling."""
    job.join(5)
    off(job.nodes[0]._relay, job.nodes[0])
    until(lambda: job.head.nodes[1].silent, "it is not missed")
    until(lambda: job.below == [5], f"they stay below: {job.below}")
    until(lambda: len(job.nodes[2].received()) >= 0 and job.nodes[2].connected, "no connection")
    job.nodes[2].send(Message("digest", {"t": 3}))
    until(lambda: job.told(3, "digest"), "it does not get through")
    time.sleep(LOST_AFTER_S)  # in which another one might be missed
    assert [number for number, one in job.head.nodes.items() if one.silent] == [1]
    assert [node.lost for node in job.nodes[1:]] == [""] * 4


def test_a_relay_that_ends_hands_its_nodes_back(job: Job) -> None:
    """In good order; they tell all anew, for what was on the way may be lost."""
    job.join(5)
    until(lambda: len(job.told(3, "hello")) == 2, "it has come by the relay")
    job.nodes[0].send(Message("bye"))
    job.nodes[0].close()
    until(lambda: len(job.told(3, "hello")) == 3, "it does not come again")
    until(lambda: job.below == [5], "another one stays")
    assert job.head.nodes[1].left
    assert not any(one.silent for one in job.head.nodes.values())


def test_all_leave_in_good_order_by_their_relays(job: Job) -> None:
    job.join(5)
    for node in (*job.nodes[2:], *job.nodes[:2]):
        node.send(Message("bye"))
    began_s = time.monotonic()
    for node in job.nodes[:2]:
        node.close()
    until(lambda: all(one.left for one in job.head.nodes.values()), "somebody does not leave")
    assert time.monotonic() - began_s < 5


def test_a_head_that_is_lost_is_missed_below_a_relay(job: Job) -> None:
    job.join(5)
    began_s = {node: node._listening.total_s for node in job.nodes}
    off(job.head)
    until(lambda: all(node.lost for node in job.nodes), "somebody waits for ever")
    assert all(missed_at_s(node) < began_s[node] + LOST_AFTER_S + 2 for node in job.nodes)
    assert all("has said nothing for" in node.lost for node in job.nodes)


def test_a_relay_and_the_head_are_lost_together(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of both: that of the head takes no connection any more, and is missed as soon as by
    those that speak to it."""
    job.join(4)
    node = job.nodes[2]
    with socket.create_server((LOOPBACK, 0), backlog=0) as nobody, socket.socket() as first:
        port = nobody.getsockname()[1]
        first.connect((LOOPBACK, port))  # its queue is full: whoever comes now hears nothing
        assert node.offer is not None
        monkeypatch.setattr(node, "offer", replace(node.offer, port=port))
        off(job.nodes[0]._relay, job.nodes[0], job.head)
        began_s = node._listening.total_s
        until(lambda: node.lost, "it waits for ever")
        assert missed_at_s(node) < began_s + LOST_AFTER_S + 0.4
        assert "has said nothing for" in node.lost


def test_a_head_that_is_slow_when_a_relay_is_lost(job: Job) -> None:
    """The twin: it takes connections, and answers later than a head may be silent otherwise."""
    job.join(4)
    node = job.nodes[2]
    job.head._keys.allowed.discard(node.key)
    off(job.nodes[0]._relay, job.nodes[0])
    began_s = node._listening.total_s
    until(lambda: node._listening.total_s - began_s > LOST_AFTER_S + 0.4, "it does not listen")
    assert missed_at_s(node) > began_s + LOST_AFTER_S + 0.4
    assert 3 in job.below
    job.head.allow(node.key)
    until(lambda: 3 not in job.below, "it does not come")
    until(lambda: node.lost == "", "it does not hear the head")


@pytest.mark.parametrize(("head_s", "silent_s"), [(0.0, 0.0), (0.45, 0.0), (1.2, 1.2)])
def test_how_long_a_head_is_silent_of_which_a_relay_tells(
    job: Job, head_s: float, silent_s: float
) -> None:
    """Between two of its pings it is not silent: an interruption of two seconds that begins just
    before the next one would be taken for a longer one than a relay or the head themselves see."""
    node = Connection(job.said.append)
    job._stack.callback(node.close)
    node._via, node._listening.total_s = job.head.offer, 60.0
    node._has_spoken(Message("ping", {"head_s": head_s}))
    assert node.silent_s == pytest.approx(silent_s)


@pytest.mark.parametrize(
    ("told", "leaves"), [({}, False), ({"unheard_s": 1.7}, True), ({"unheard_s": "long"}, False)]
)
def test_a_relay_that_does_not_hear_a_node(job: Job, told: dict[str, object], leaves: bool) -> None:
    """Their connection is stuck in one direction: it is time to look for the head."""
    node = Connection(job.said.append)
    job._stack.callback(node.close)
    node._via, node._via_welcomed = job.head.offer, True
    node._has_spoken(Message("ping", {"head_s": 0.0, **told}))
    assert node._uneasy(SILENT_S) == leaves


def test_a_relay_that_cannot_be_reached_is_done_without(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall, say: all speak to the head, and none is missed."""
    monkeypatch.setattr("distdebug.node_links.limits.ANSWERS_S", 0.5)
    monkeypatch.setattr(Relay, "allow", lambda _self, _key: None)
    job.meet(3)
    until(lambda: job.nodes[2]._next, "it does not try")
    until(lambda: job.nodes[2]._next is None, "it tries for ever")
    assert job.below == []
    job.nodes[2].send(Message("digest", {"t": 3}))
    until(lambda: job.told(3, "digest"), "it does not get through")


def test_the_way_of_a_relay_to_the_head_breaks_and_comes_again(job: Job) -> None:
    """What was on the way is lost: all below it say hello once more, and tell all anew."""
    between = Between(job.head.port)
    job._stack.callback(between.close)
    first = Connection(job.said.append)
    job._stack.callback(first.close)
    job.head.allow(first.key)
    first.connect(replace(job.head.offer, port=between.port), HELLO)
    until(lambda: first.welcome, "it was never welcomed")
    job.nodes.append(first)
    job.join(2)
    until(lambda: len(job.told(3, "hello")) == 2, "it has come by the relay")
    between.cut()
    job.nodes[2].send(Message("digest", {"t": 1}))  # lost, or not
    between.open = True
    until(lambda: len(job.told(3, "hello")) == 3, "it does not say hello again")
    job.nodes[2].send(Message("digest", {"t": 2}))
    until(lambda: any(one.data["t"] == 2 for one in job.told(3, "digest")), "nothing comes")
    until(lambda: job.nodes[2].ahead <= 0, "what was taken in is not told")
    assert job.below == [3]
    assert not any(one.silent for one in job.head.nodes.values())
    assert [node.lost for node in job.nodes] == [""] * 3


def test_nodes_with_one_key_are_told_apart_below_a_relay(job: Job) -> None:
    head = Listener(LOOPBACK, "node0", job.said.append, 0, head_pair(b"x" * 40))
    job._stack.callback(head.close)
    head.welcome = {"version": "1"}
    job.head = head
    head.allow(node_pair(b"x" * 40).public.decode())
    for number in range(4):
        node = Connection(job.said.append, node_pair(b"x" * 40))
        job._stack.callback(node.close)
        node.connect(head.offer, {**HELLO, "id": f"node/{number}"})
        job.nodes.append(node)
        until(lambda node=node: node.welcome, "it was never welcomed")  # type: ignore[misc]
    until(lambda: job.below == [3, 4], "they stay with the head")
    for place, node in enumerate(job.nodes, 1):
        node.send(Message("digest", {"t": place}))
    for number in range(1, 5):
        until(lambda number=number: job.told(number, "digest"), "nothing came")  # type: ignore[misc]
        assert [one.data["t"] for one in job.told(number, "digest")] == [number]


def test_a_relay_lets_nobody_in_whom_the_head_has_not_named(job: Job) -> None:
    job.join(3)
    relay = job.nodes[0]._relay
    assert relay is not None
    stranger = Connection(job.said.append)
    job._stack.callback(stranger.close)
    stranger.connect(relay.offer, HELLO)
    time.sleep(1)  # in which it might be let in
    assert not stranger.connected
    assert list(relay.nodes) == [1]


def test_what_a_head_has_not_taken_in_does_not_grow_in_a_relay(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that tells without end fills neither; nobody is missed for it."""
    monkeypatch.setattr("distdebug.node_links.relay.MOST_ON_THE_WAY_BYTES", 2 << 20)
    monkeypatch.setattr("distdebug.node_links.inbox.MOST_UNREAD_BYTES", 1 << 20)
    job.join(4)
    relay = job.nodes[0]._relay
    assert relay is not None
    for number in range(200):
        job.nodes[2].send(Message("digest", {"t": number}, bytes(100_000)))
    until(lambda: relay._is_full, "it reads on")
    time.sleep(LOST_AFTER_S)  # in which somebody might be missed
    assert relay._on_the_way_bytes < (2 << 20) + 200_000
    assert not any(one.silent for one in job.head.nodes.values())
    until(lambda: len(job.told(3, "digest")) == 200, "some are lost")
    assert [one.data["t"] for one in job.told(3, "digest")] == list(range(200))


def test_who_goes_below_whom() -> None:
    tree = Tree(2)
    placed = [tree.place(number, lambda _: True) for number in range(1, 8)]
    assert placed == [0, 0, 1, 1, 2, 2, 0]
    assert tree.to_ask == [1, 2]
    tree.asked(1)
    assert tree.to_ask == [2]
    assert tree.relaying(1, None) == (3, 4), "it cannot listen"
    assert tree.offer_of(1) is None
    tree = Tree(2)
    assert tree.place(3, lambda number: number == 2) == 2, "the first is lost"


def test_up_to_the_fan_in_there_is_no_relay(job: Job) -> None:
    job.join(FAN_IN)
    time.sleep(1)
    assert all(node._relay is None and node._via is None for node in job.nodes)


def test_a_rank_below_a_relay_that_comes_to_stand_still_is_told_of_however_many_nodes_there_are(
    job: Job, tmp_path: Path
) -> None:
    """That it goes on calling was not told for two minutes: the twin says no more than that."""
    job.join(3)
    author = Author(tmp_path / "pid-7.flight")
    sampler = Sampler(tmp_path, lambda _pid, _ticks: Process(alive=True))
    sampler.pace = replace(pace_for(2048), idle_s=3600.0)
    seen: list[Message] = []

    def hand_on() -> list[Message]:
        for message in sampler.digests():
            job.nodes[2].send(message)
        seen[:] = job.told(3, "digest")
        return seen

    until(hand_on, "the first digest has not come")
    for _ in range(10):
        author.writer.finish(*author.call())
        assert len(hand_on()) == 1, "it goes on calling"
    until(lambda: len(hand_on()) > 1, "that it stands still was not told")
    assert "busy" not in seen[1].data
    sampler.hasten()
    author.writer.finish(*author.call())
    until(lambda: len(hand_on()) > 2, "it was not told what was asked for")
    assert seen[2].data["busy"] is True

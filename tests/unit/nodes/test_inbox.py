"""A head that is behind: what its nodes say waits on them, in bounds, and nothing of it is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import zmq

from distdebug.nodes import messages as inbox
from distdebug.nodes.keys import SCHEMA, Offer
from distdebug.nodes.messages import Inbox, Intake, Message
from distdebug.record.snapshot import Process
from tests.unit.nodes.test_links import LIMIT_S
from tests.unit.nodes.test_reconnections import Two
from tests.unit.record.test_flight import Author

ROOT = Path(__file__).resolve().parents[3]
HEAD = """
import json, sys, time
from distdebug.nodes import messages as inbox
from distdebug.nodes.listener import Listener

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

inbox.MOST_UNREAD_BYTES = int(sys.argv[1])
count = int(sys.argv[2])
listener = Listener("127.0.0.1", "node0", lambda said: print(said, file=sys.stderr))
listener.welcome = {"version": "1"}
listener.allow(sys.argv[3])
print(listener.offer.text(), flush=True)
waiting = listener._inbox._waiting
while not (listener._inbox.full or len(waiting) > count):
    time.sleep(0.01)
listened_s, before = listener._listening.total_s, resident()
until_s = time.monotonic() + 1.0
while time.monotonic() < until_s:  # nobody takes, and more comes
    time.sleep(0.01)
grown, listened_s = resident() - before, listener._listening.total_s - listened_s
unread = sum(row[3] for row in list(waiting))
serials = []
while len(serials) < count:
    serials += [one.data["serial"] for _, one in listener.received() if one.kind == "digest"]
    time.sleep(0.001)
print(json.dumps([unread, grown, listened_s, serials == list(range(count))]), flush=True)
listener.close()
"""
BOUND_BYTES, EACH_BYTES = 4 << 20, 16 << 10


def flooded(count: int) -> tuple[int, int, float, bool]:
    """A head in a process of its own, whose supervisor does not come to take what a node tells
    without a pause: what is unread then, by how much its memory grew further, for how long it
    counted as listening, and whether all came in order when it took them."""
    public, secret = zmq.curve_keypair()
    command = [sys.executable, "-c", HEAD, str(BOUND_BYTES), str(count), public.decode()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        offer = Offer.of(head.stdout.readline().strip())
        with zmq.Context() as context, context.socket(zmq.DEALER) as node:
            node.linger = 0
            node.sndhwm = 16
            node.curve_publickey, node.curve_secretkey = public, secret
            node.curve_serverkey = offer.key.encode()
            node.connect(offer.endpoint)
            hello = {"schema": SCHEMA, "version": "1", "host": "node1"}
            node.send_multipart(Message("hello", hello).parts())
            assert node.poll(LIMIT_S * 1000), "it was never welcomed"
            for serial in range(count):
                told = Message("digest", {"serial": serial, "t": 1}, b"x" * EACH_BYTES)
                node.send_multipart(told.parts())
            found = json.loads(head.stdout.readline())
        assert head.wait(LIMIT_S) == 0
    return cast(tuple[int, int, float, bool], tuple(found))


def test_a_head_that_does_not_come_to_take_what_is_told_does_not_grow() -> None:
    unread, grown, listened_s, in_order = flooded(4000)  # 64 MiB
    assert unread < BOUND_BYTES + 2 * EACH_BYTES
    assert grown < 16 << 20
    assert listened_s < 0.5, "whoever does not read takes nobody for silent"
    assert in_order, "what had waited on the node came when there was room"


def test_a_head_that_has_room_reads_on() -> None:
    unread, _, listened_s, in_order = flooded(40)
    assert unread > 40 * EACH_BYTES
    assert listened_s > 0
    assert in_order


def test_it_is_full_until_half_of_it_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_UNREAD_BYTES", 100)
    found, intake = Inbox(), Intake()
    for _ in range(4):
        assert not found.full
        found.put(1, Message("digest"), intake, 25)
    assert found.full
    taken = found.taken()
    next(taken)
    assert found.full
    assert intake.taken == 1
    next(taken)
    next(taken)
    assert not found.full
    found.put(1, Message("bye"), intake, 25)
    assert [message.kind for _, message in taken] == ["digest"], "what has come since comes next"


@pytest.fixture(name="two")
def _two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


def test_a_node_whose_head_is_behind_tells_later_in_one(two: Two) -> None:
    """It calls and stands still a hundred times, of which the head takes nothing: then what it is
    told in a few digests is what the node's own record says."""
    node, pace = two.node, two.node._sampler.pace
    node._sampler._observe = lambda _pid, _ticks: Process(alive=True)
    author = Author(node._directory.ranks / "pid-7.flight")
    two.until(lambda: two.head.nodes[1].serial and two.connection.ahead == 0, "nothing was told")
    waiting = two.listener._inbox._waiting
    for _ in range(100):
        author.call()
        node.take()
        node.take()  # it stands still, which is told at once
    most = pace.ahead + 3  # with the last digest may go what was injected, and logs
    assert pace.ahead <= two.connection.ahead <= most
    assert len(waiting) <= most
    serial = two.head.nodes[1].serial
    assert serial <= most, "the twin: it was taken in, so far"
    two.until(lambda: _calls(two) == 100, "what had changed meanwhile was never told")
    assert two.head.nodes[1].serial <= serial + 2 * most
    assert not two.head.nodes[1].torn_s, "none was lost"
    assert two.said == []


def _calls(two: Two) -> int:
    """How many calls the head's copy has."""
    from distdebug.record.reading.reader import FlightReader

    (path,) = two.head._directory.ranks.glob("node1-*.flight")
    reader = FlightReader(path)
    try:
        return reader._calls()
    finally:
        reader.close()


def test_what_the_head_refuses_counts_as_taken(two: Two) -> None:
    """Else a node that has said some things that its head cannot read would fall silent."""
    two.until(lambda: two.connection.ahead == 0, "its hello was never taken in")
    for _ in range(two.node._sampler.pace.ahead + 1):
        two.connection.send(cast(Message, SimpleNamespace(kind="?", parts=lambda: [b"?", b"{"])))
    two.until(lambda: any("refused" in one for one in two.said), "nothing was refused")
    two.until(lambda: two.connection.ahead == 0, "the node waits for ever")

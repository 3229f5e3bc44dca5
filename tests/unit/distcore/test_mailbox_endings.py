"""What becomes of messages when a deadline passes, or a rank leaves, in the middle of them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from distcore import errors, limits
from distcore.base.deadline import Deadline
from distcore.transports import frames
from distcore.transports.link import last_words
from distcore.transports.mailbox import Mailbox
from distcore.transports.matching import Matching, Posting
from distcore.transports.parcels import Parcel, Receiver, Sender
from tests.support.gate import Gate

LONG = 3_000_000


class Pair:
    """Two ranks; `hold` keeps the connections that rank 0 dials until `release`."""

    def __init__(self) -> None:
        self.hold = False
        self._held: list[socket.socket] = []
        self.lives = socket.socketpair()
        self.boxes = [
            Mailbox("g", [0, 10], 0, self.dial, {1: self.lives[0].fileno()}, lambda _peer: False),
            self.other(lambda _peer: bool(self._held)),
        ]

    def other(self, calling: Callable[[int], bool]) -> Mailbox:
        """Rank 1's."""
        return Mailbox("g", [0, 10], 1, self.dial, {0: self.lives[1].fileno()}, calling)

    def dial(self, _peer: int, _deadline: float) -> socket.socket:
        one, other = socket.socketpair()
        self._held.append(other)
        if not self.hold:
            self.release()
        return one

    def release(self) -> None:
        for connection in self._held:
            if not self.boxes[1].accept(0, connection):
                connection.close()  # it is leaving, as a listener finds out too
        self._held.clear()

    def leave(self) -> None:
        """Rank 0 ends its group."""
        self.boxes[0].close()
        self.lives[0].close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.leave()
    made.boxes[1].close()
    made.lives[1].close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as made:
        yield made


def until(seconds: float) -> float:
    return time.monotonic() + seconds


def wait_for_the_end(box: Mailbox) -> None:
    """Until the mailbox has seen that its peer went."""
    limit = until(10)
    while not box._doubts:
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_the_last_message_of_one_who_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on its way through the listener when the rank's other connections end; the rank has
    not waited for it to be received."""
    monkeypatch.setattr(limits, "CALLER_S", 20.0)  # it comes as late as this test is run
    pair.hold = True
    pair.boxes[0].post_send(1, 3, memoryview(b"farewell"), until(20))
    pair.leave()
    into = bytearray(8)
    received = pair.boxes[1].post_receive(0, 3, memoryview(into), until(20))
    wait_for_the_end(pair.boxes[1])
    pair.release()
    assert received.wait(20)
    assert into == b"farewell"
    nothing = pair.boxes[1].post_receive(0, 3, memoryview(into), until(20))
    began = time.monotonic()
    with pytest.raises(errors.PeerLost, match="rank 0 was lost in recv"):
        nothing.wait(20)
    assert time.monotonic() - began < 15


def test_one_who_left_without_a_message(pair: Pair) -> None:
    received = pair.boxes[1].post_receive(0, 3, memoryview(bytearray(8)), until(20))
    pair.leave()
    began = time.monotonic()
    with pytest.raises(errors.PeerLost) as lost:
        received.wait(20)
    assert lost.value.culprit == 0
    assert time.monotonic() - began < 15


def test_an_offer_that_was_withdrawn_harms_no_later_message(pair: Pair) -> None:
    sender, receiver = pair.boxes
    late = sender.post_send(1, 1, memoryview(bytes(LONG)), until(0.1))
    with pytest.raises(errors.DeadlineExceeded):
        late.wait(20)
    wanted = receiver.post_receive(0, 1, memoryview(bytearray(LONG)), until(0.3))
    with pytest.raises(errors.DeadlineExceeded):
        wanted.wait(20)
    for size in (5, LONG):
        into = bytearray(size)
        received = receiver.post_receive(0, 2, memoryview(into), until(20))
        sent = sender.post_send(1, 2, memoryview(b"x" * size), until(20))
        assert sent.wait(20)
        assert received.wait(20)
        assert into == b"x" * size


def test_a_message_that_nobody_takes_in_full(pair: Pair) -> None:
    """Its receiver answered, and then read no more: the sender's deadline counts."""
    sender = pair.boxes[0]
    pair.hold = True
    works = [sender.post_send(1, 1, memoryview(bytes(60_000)), until(0.3)) for _ in range(40)]
    with pytest.raises(errors.DeadlineExceeded):
        works[-1].wait(20)
    began = time.monotonic()
    pair.release()
    pair.leave()
    assert time.monotonic() - began < 9


def test_the_last_message_of_one_who_is_known_to_call(pair: Pair) -> None:
    """Nobody waits longer than it takes, and nobody goes too early."""
    pair.boxes[1].close()
    asked = 0

    def calling(peer: int) -> bool:
        nonlocal asked
        assert peer == 0
        asked += 1
        if asked == 3:
            pair.release()
        return asked < 3

    pair.boxes[1] = pair.other(calling)
    pair.hold = True
    pair.boxes[0].post_send(1, 3, memoryview(b"farewell"), until(20))
    pair.leave()
    into = bytearray(8)
    received = pair.boxes[1].post_receive(0, 3, memoryview(into), until(20))
    assert received.wait(20)
    assert into == b"farewell"
    assert asked == 3


def test_nobody_waits_for_one_who_does_not_call(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALLER_S", 40.0)
    pair.boxes[1].close()
    pair.boxes[1] = pair.other(lambda _peer: False)
    received = pair.boxes[1].post_receive(0, 3, memoryview(bytearray(8)), until(40))
    began = time.monotonic()
    pair.leave()
    with pytest.raises(errors.PeerLost):
        received.wait(40)
    assert time.monotonic() - began < 20


def test_who_fails_says_why(pair: Pair) -> None:
    """To those it has sent to, to those who have sent to it, and in place of its own name."""
    sender, receiver = pair.boxes
    first = sender.post_send(1, 1, memoryview(bytes(LONG)), until(20))
    later = receiver.post_receive(0, 2, memoryview(bytearray(8)), until(20))
    cause = errors.PeerLost("rank 7 was lost in all_reduce() #3", 7)
    receiver.fail(cause)
    for posting in (later, first):
        with pytest.raises(errors.PeerLost, match="rank 7 was lost in all_reduce") as told:
            posting.wait(20)
        assert told.value.culprit == 7
    with pytest.raises(errors.PeerLost, match=r"rank 7 .* \(told by rank 10\)"):
        sender.post_send(1, 1, memoryview(bytes(8)), until(20)).wait(20)


def test_who_comes_after_the_failure_is_told(pair: Pair) -> None:
    pair.hold = True
    sent = pair.boxes[0].post_send(1, 1, memoryview(bytes(LONG)), until(20))
    pair.boxes[1].fail(errors.PeerLost("rank 7 was lost in all_reduce() #3", 7))
    limit = until(10)
    while not (pair.boxes[1]._told and pair._held):
        assert time.monotonic() < limit
        time.sleep(0.001)
    pair.release()
    with pytest.raises(errors.PeerLost, match="rank 7 was lost in all_reduce"):
        sent.wait(10)


def test_last_words_are_found_behind_whatever_was_not_read() -> None:
    mine, theirs = socket.socketpair()
    failure = frames.failure(errors.PeerLost("rank 3 was lost", 3))
    with mine, theirs:
        for more in (b"x" * 100_000, failure):
            assert last_words(mine.fileno()) is None
            theirs.sendall(more)
        payload = last_words(mine.fileno())
        assert payload is not None
        assert frames.failure_from(payload, 1).culprit == 3
        assert len(mine.recv(200_000)) == 100_000 + len(failure)
        theirs.sendall(frames.control(frames.BYE))
        assert last_words(mine.fileno()) is None


def test_a_late_send_and_a_late_receive_tell_their_own_progress() -> None:
    """Also where both are under way with one peer, each as its sender's first message."""
    ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
    senders: dict[int, Sender] = {}
    receivers: dict[int, Receiver] = {}
    matching = Matching([0, 10], 0, senders, receivers)
    senders[1] = Sender(ours[0], False, 1, matching)
    receivers[1] = Receiver(ours[1], False, 1, matching)
    now = time.monotonic()
    sent = Posting(True, 1, 3, memoryview(bytes(LONG)), now, "", "send()", source=1)
    received = Posting(False, 1, 3, memoryview(bytearray(LONG)), now, "", "recv()")
    matching.send(sent, senders[1])
    matching.accepted(1, 0, 0)
    matching.receive(received)
    matching.arrived(1, Parcel(0, 3, "", LONG, None))
    matching.expire(now)
    assert re.search(
        r"send\(\) ran out: [1-9]\d* of 3000000 bytes were sent to rank 10", str(sent.error)
    )
    assert "recv() ran out: rank 10 sent 0 of 3000000 bytes" in str(received.error)
    for end in (*ours, *theirs):
        end.close()


def test_memory_is_left_alone_after_the_deadline(pair: Pair, gate: Gate) -> None:
    """What a receive was given up on comes nevertheless; what a send was given up on is not read
    any more."""
    sender, receiver = pair.boxes
    stuck, other = socket.socketpair()
    pair.dial = lambda _peer, _deadline: stuck  # type: ignore[method-assign]
    sender._dial = pair.dial
    data, into = bytearray(b"a" * LONG), bytearray(LONG)
    sent = sender.post_send(1, 1, memoryview(data), Deadline.after(0.5))
    middle, end = socket.socketpair()
    assert receiver.accept(0, end)
    received = receiver.post_receive(0, 1, memoryview(into), Deadline.after(0.3))
    with other, middle:
        middle.setblocking(False)
        other.settimeout(30)
        middle.sendall(other.recv(100_000))  # the offer
        while not (answer := _there(middle)):
            time.sleep(0.001)
        other.sendall(answer)
        piece = other.recv(50_000)
        middle.sendall(piece)
        gate.come()
        with pytest.raises(errors.DeadlineExceeded, match=r"rank 0 sent \d+ of 3000000 bytes"):
            received.wait(20)
        into[:] = bytes(LONG)
        with pytest.raises(errors.DeadlineExceeded, match=r"\d+ of 3000000 bytes were sent to"):
            sent.wait(20)
        data[:] = b"b" * LONG
        rest = bytearray()
        while len(rest) + len(piece) < 1_048_576:
            rest += other.recv(1_000_000)
        assert b"b" * 100 not in rest
        middle.setblocking(True)
        middle.sendall(rest)
        again = bytearray(8)
        received = receiver.post_receive(0, 2, memoryview(again), until(0.5))
        with pytest.raises(errors.DeadlineExceeded):
            received.wait(20)
        assert into == bytes(LONG)


def _there(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100_000)
    except BlockingIOError:
        return b""

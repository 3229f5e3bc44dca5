"""What becomes of messages when a deadline passes, or a rank leaves, in the middle of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from distcore import errors
from distcore.transports.mailbox import Mailbox

LONG = 3_000_000


class Pair:
    """Two ranks; `hold` keeps the connections that rank 0 dials until `release`."""

    def __init__(self) -> None:
        self.hold = False
        self._held: list[socket.socket] = []
        self.lives = socket.socketpair()
        self.boxes = [
            Mailbox("g", [0, 10], 0, self.dial, {1: self.lives[0].fileno()}),
            Mailbox("g", [0, 10], 1, self.dial, {0: self.lives[1].fileno()}),
        ]

    def dial(self, _peer: int, _deadline: float) -> socket.socket:
        one, other = socket.socketpair()
        self._held.append(other)
        if not self.hold:
            self.release()
        return one

    def release(self) -> None:
        for connection in self._held:
            assert self.boxes[1].accept(0, connection)
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


def until(seconds: float) -> float:
    return time.monotonic() + seconds


def wait_for_the_end(box: Mailbox) -> None:
    """Until the mailbox has seen that its peer went."""
    limit = until(10)
    while not box._leavers:
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_the_last_message_of_one_who_left(pair: Pair) -> None:
    """It is on its way through the listener when the rank's other connections end; the rank has
    not waited for it to be received."""
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
    assert time.monotonic() - began < 5


def test_one_who_left_without_a_message(pair: Pair) -> None:
    received = pair.boxes[1].post_receive(0, 3, memoryview(bytearray(8)), until(20))
    pair.leave()
    began = time.monotonic()
    with pytest.raises(errors.PeerLost) as lost:
        received.wait(20)
    assert lost.value.culprit == 0
    assert time.monotonic() - began < 5


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

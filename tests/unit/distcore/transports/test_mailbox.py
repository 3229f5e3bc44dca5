"""Messages with tags between ranks; who is told what when a partner does not come."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import pytest

from distcore import errors
from distcore.transports import mailbox
from distcore.transports.mailbox import Mailbox, Posting
from distcore.transports.parcels import BUFFERED_BYTES
from tests.support.meshes import lanes

LONG = 3_000_000


def soon() -> float:
    return time.monotonic() + 20


Mailboxes = Callable[[int], AbstractContextManager[list[Mailbox]]]


@pytest.fixture(params=["sockets", "lanes", "in place"])
def mailboxes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mailboxes:
    """Ranks of one group in this process."""
    if request.param == "in place":
        monkeypatch.setattr(os, "cpu_count", lambda: 1)
    return partial(_mailboxes, request.param)


@contextmanager
def _mailboxes(kind: str, size: int) -> Iterator[list[Mailbox]]:
    boxes: list[Mailbox] = []
    kept: list[socket.socket] = []
    lives = {}
    for low in range(size):
        for high in range(low + 1, size):
            lives[low, high], lives[high, low] = socket.socketpair()
            kept += [lives[low, high], lives[high, low]]

    def dialler(rank: int) -> Callable[[int, float], socket.socket]:
        def dial(peer: int, _deadline: float) -> socket.socket:
            one, other = socket.socketpair()
            if not boxes[peer].accept(rank, other):
                one.close()
                other.close()
                raise errors.PeerLost(f"rank {peer} is gone", peer)
            return one

        return dial

    in_place = kind == "in place"
    with nullcontext([{}] * size) if kind == "sockets" else lanes(size, in_place) as options:
        for rank in range(size):
            alive = {peer: lives[rank, peer].fileno() for peer in range(size) if peer != rank}
            calling = lambda _peer: False  # noqa: E731
            boxes.append(
                Mailbox("g", range(size), rank, dialler(rank), alive, calling, **options[rank])
            )
        try:
            yield boxes
        finally:
            for box in boxes:
                box.close()
        for one in kept:
            one.close()


def into(size: int) -> memoryview:
    return memoryview(bytearray(size))


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, LONG])
@pytest.mark.parametrize("receive_first", [False, True])
def test_a_message_arrives(mailboxes: Mailboxes, size: int, receive_first: bool) -> None:
    data = memoryview(bytearray(i % 251 for i in range(1000)) * (size // 1000 + 1))[:size]
    with mailboxes(2) as (one, other):
        target = into(size)
        posts: list[Posting] = []
        if receive_first:
            posts.append(other.post_receive(0, 5, target, soon()))
        posts.append(one.post_send(1, 5, data, soon()))
        if not receive_first:
            posts.append(other.post_receive(0, 5, target, soon()))
        for posting in posts:
            assert posting.wait(20)
        assert target == data
        assert repr(posts[0]).endswith(": done>")


def test_tags_and_order(mailboxes: Mailboxes) -> None:
    """Messages overtake each other between tags, never within one."""
    with mailboxes(2) as (one, other):
        sends = [
            one.post_send(1, tag, memoryview(bytearray([number]) * size), soon())
            for number, (tag, size) in enumerate([(1, 4), (2, LONG), (1, LONG), (-3, 4), (1, 4)])
        ]
        got = {}
        for tag, size, number in ((-3, 4, 3), (2, LONG, 1), (1, 4, 0), (1, LONG, 2), (1, 4, 4)):
            got[number] = into(size)
            assert other.post_receive(0, tag, got[number], soon()).wait(20)
        assert all(bytes(data[:1]) == bytes([number]) for number, data in got.items())
        assert all(send.wait(20) for send in sends)


def test_both_ways_at_once(mailboxes: Mailboxes) -> None:
    with mailboxes(2) as boxes:
        targets = [into(LONG), into(LONG)]
        postings = [
            box.post_send(1 - rank, 0, memoryview(bytearray([rank]) * LONG), soon())
            for rank, box in enumerate(boxes)
        ]
        postings += [
            box.post_receive(1 - rank, 0, targets[rank], soon()) for rank, box in enumerate(boxes)
        ]
        assert all(posting.wait(20) for posting in postings)
        assert [bytes(target[-1:]) for target in targets] == [b"\1", b"\0"]


def test_from_anybody(mailboxes: Mailboxes) -> None:
    with mailboxes(3) as boxes:
        receives = [boxes[0].post_receive(None, 7, into(1), soon()) for _ in range(2)]
        for rank in (1, 2):
            boxes[rank].post_send(0, 7, memoryview(bytes([rank])), soon())
        assert all(receive.wait(20) for receive in receives)
        assert sorted(receive.source for receive in receives) == [1, 2]
        assert all(bytes(receive.data) == bytes([receive.source]) for receive in receives)


@pytest.mark.parametrize("size", [8, BUFFERED_BYTES + 8])
def test_a_message_of_another_kind(mailboxes: Mailboxes, size: int) -> None:
    """A sender that has gone on is told at its next call, once."""
    with mailboxes(2) as (one, other):
        sent = one.post_send(1, 0, memoryview(bytes(size)), soon(), f"float64[{size // 8}]")
        behind = one.post_send(1, 2, memoryview(bytes(LONG)), soon())
        with pytest.raises(
            errors.CallMismatch, match=r"recv\(src=0, float32\[2\], tag=0\)"
        ) as told:
            other.post_receive(0, 0, into(8), soon(), "float32[2]").wait(20)
        assert f"rank 0 sent float64[{size // 8}]" in str(told.value)
        if size == 8:
            assert sent.wait(20)
            assert other.post_receive(0, 2, into(LONG), soon()).wait(20)
            assert behind.wait(20)  # the answers come in their order
            sent = one.post_send(1, 1, memoryview(b"next"), soon())
        with pytest.raises(
            errors.CallMismatch, match=r"rank 0 (is|was) in send\(dst=1, float64"
        ) as met:
            sent.wait(20)
        assert "but rank 1 is in recv(src=0, float32[2], tag=0)" in str(met.value)
        assert one.post_send(1, 1, memoryview(b"next"), soon()).wait(20)


def test_small_messages_are_buffered_as_far_as_there_is_room(mailboxes: Mailboxes) -> None:
    """In their order, whatever their tags; an empty one is not for nothing."""
    part = BUFFERED_BYTES // 4
    with mailboxes(3) as (one, other, _third):
        data = bytearray(b"1" * part)
        first = one.post_send(1, 1, memoryview(data), soon())
        assert first.wait(20)
        data[:] = bytes(part)  # it was copied
        long = one.post_send(1, 2, memoryview(bytes(BUFFERED_BYTES + 1)), soon())
        rest = [one.post_send(1, 3, memoryview(b"2" * part), soon()) for _ in range(4)]
        assert all(send.wait(20) for send in rest[:3])
        empty = one.post_send(1, 4, memoryview(b""), soon())
        assert one.post_send(2, 1, memoryview(bytes(BUFFERED_BYTES)), soon()).wait(20)
        assert not any(send.done for send in (long, rest[3], empty))
        target = into(part)
        assert other.post_receive(0, 1, target, soon()).wait(20)
        assert bytes(target) == b"1" * part
        assert rest[3].wait(20)  # in the room of the first one
        assert not empty.done
        assert other.post_receive(0, 2, into(BUFFERED_BYTES + 1), soon()).wait(20)
        assert long.wait(20)
        assert not empty.done
        assert other.post_receive(0, 3, into(part), soon()).wait(20)
        assert empty.wait(20)


def test_no_message_passes_one_that_waits_for_room(mailboxes: Mailboxes) -> None:
    with mailboxes(2) as (one, other):
        assert one.post_send(1, 1, memoryview(bytes(9)), soon()).wait(20)
        large = one.post_send(1, 2, memoryview(bytes(BUFFERED_BYTES)), soon())
        small = one.post_send(1, 3, memoryview(bytes(9)), soon())
        assert not small.done
        assert other.post_receive(0, 2, into(BUFFERED_BYTES), soon()).wait(20)
        assert large.wait(20)
        assert small.wait(20)


def test_sends_that_wait_for_room_until_their_time_is_up(mailboxes: Mailboxes) -> None:
    with mailboxes(2) as (one, other):
        assert one.post_send(1, 1, memoryview(bytes(9)), soon()).wait(20)
        for sizes in ((BUFFERED_BYTES, 9), (BUFFERED_BYTES,)):
            until = time.monotonic() + 0.1
            late = [one.post_send(1, 2, memoryview(bytes(size)), until) for size in sizes]
            behind = one.post_send(1, 3, memoryview(bytes(9)), soon())
            for posting in late:
                with pytest.raises(errors.DeadlineExceeded, match="it has no partner"):
                    posting.wait(20)
            assert behind.wait(20)
        assert all(other.post_receive(0, 3, into(9), soon()).wait(20) for _ in range(2))


@pytest.mark.parametrize("seed", range(8))
def test_which_sends_are_over_is_told_by_a_model(mailboxes: Mailboxes, seed: int) -> None:
    """Of what is not received, in its order and whatever the tags: the first `BUFFERED_BYTES`."""
    chance = random.Random(seed)
    sizes = (0, 1, 100, 3000, BUFFERED_BYTES - 1, BUFFERED_BYTES, BUFFERED_BYTES + 1)
    sent: list[tuple[int, int, Posting]] = []
    with mailboxes(2) as (one, other):
        for _ in range(60):
            if chance.random() < 0.6 or not sent:
                tag, size = chance.randrange(3), chance.choice(sizes)
                data = memoryview(bytes([chance.randrange(256)]) * size)
                sent.append((tag, size, one.post_send(1, tag, data, soon())))
            else:
                wanted = chance.choice(sent)[0]
                message = next(row for row in sent if row[0] == wanted)
                sent.remove(message)
                assert other.post_receive(0, wanted, into(message[1]), soon()).wait(20)
                assert message[2].wait(20)
            held = 0
            for _, size, posting in sent:
                if size <= BUFFERED_BYTES:
                    held += max(size, 1)
                if size <= BUFFERED_BYTES and held <= BUFFERED_BYTES:
                    assert posting.wait(20)
                else:
                    assert not posting.done
        for tag, size, posting in sent:
            assert other.post_receive(0, tag, into(size), soon()).wait(20)
            assert posting.wait(20)


def test_what_is_buffered_arrives_after_its_sender_has_left(mailboxes: Mailboxes) -> None:
    with mailboxes(2) as (one, other):
        sends = [one.post_send(1, tag, memoryview(b"%d" % tag), soon()) for tag in range(9)]
        assert all(send.wait(20) for send in sends)
        first = into(1)
        assert other.post_receive(0, 0, first, soon()).wait(20)
        one.close()
        for tag in reversed(range(1, 9)):
            target = into(1)
            assert other.post_receive(0, tag, target, soon()).wait(20)
            assert bytes(target) == b"%d" % tag
        with pytest.raises(errors.PeerLost):
            other.post_send(0, 0, memoryview(b"late"), soon()).wait(20)


def test_a_partner_that_never_comes(mailboxes: Mailboxes) -> None:
    with mailboxes(2) as (one, other):
        late = [
            other.post_receive(0, 3, into(8), time.monotonic() + 0.1),
            one.post_send(1, 4, memoryview(bytes(LONG)), time.monotonic() + 0.1),
            one.post_send(1, 5, memoryview(bytes(BUFFERED_BYTES + 1)), time.monotonic() + 0.1),
        ]
        for posting in late:
            with pytest.raises(errors.DeadlineExceeded, match="it has no partner"):
                posting.wait(20)


def test_what_is_taken_back_is_not_received(mailboxes: Mailboxes) -> None:
    """Its memory is the program's again, and the receiver may look there only then."""
    data = bytearray(LONG)
    with mailboxes(2) as (one, other):
        sent = one.post_send(1, 0, memoryview(data), time.monotonic() + 0.05)
        with pytest.raises(errors.DeadlineExceeded):
            sent.wait()
        data[:] = b"x" * LONG
        received = other.post_receive(0, 0, into(LONG), time.monotonic() + 0.5)
        with pytest.raises(errors.DeadlineExceeded):
            received.wait()


def test_a_partner_that_is_gone(mailboxes: Mailboxes) -> None:
    """It said something before it went: that still arrives; more does not."""
    with mailboxes(3) as (one, other, third):
        last = one.post_send(1, 0, memoryview(b"last"), soon())
        assert other.post_receive(0, 0, into(4), soon()).wait(20)
        assert last.wait(20)
        second = other.post_receive(0, 0, into(4), soon())
        one.close()
        with pytest.raises(errors.PeerLost, match="rank 0 was lost in recv") as told:
            second.wait(20)
        assert told.value.culprit == 0
        with pytest.raises(errors.PeerLost):
            other.post_send(0, 0, memoryview(b"answer"), soon()).wait(20)
        fine = third.post_send(1, 0, memoryview(b"fine"), soon())
        assert other.post_receive(2, 0, into(4), soon()).wait(20)
        assert fine.wait(20)


def test_abort_ends_what_is_posted_and_what_comes(mailboxes: Mailboxes) -> None:
    with mailboxes(2) as (_one, other):
        posting = other.post_receive(0, 0, into(4), soon())
        threading.Timer(0.05, other.abort, ["the group was aborted"]).start()
        for one in (posting, other.post_receive(0, 0, into(4), soon())):
            with pytest.raises(errors.Aborted, match="the group was aborted"):
                one.wait(20)


def test_strangers_words_are_no_message() -> None:
    with _mailboxes("sockets", 2) as (_one, other):
        mine, theirs = socket.socketpair()
        with mine:
            assert other.accept(0, theirs)
            posting = other.post_receive(0, 0, into(4), soon())
            mine.sendall(b"GET / HTTP/1.1\r\n" * 8)
            with pytest.raises(errors.CorruptFrame, match="rank 0"):
                posting.wait(20)


def test_several_threads_wait(mailboxes: Mailboxes) -> None:
    """One of them moves the messages of all, and another one does when it leaves."""
    threads, rounds = 4, 50

    def talk(box: Mailbox, tag: int) -> None:
        mine = box.rank == 0
        for number in range(rounds):
            target = into(8)
            data = memoryview(number.to_bytes(8, "little"))
            for sends in (mine, not mine):
                if sends:
                    assert box.post_send(1 - box.rank, tag, data, soon()).wait(20)
                else:
                    assert box.post_receive(1 - box.rank, tag, target, soon()).wait(20)
            assert target == data

    with mailboxes(2) as boxes, ThreadPoolExecutor(2 * threads) as pool:
        talks = [pool.submit(talk, box, tag) for box in boxes for tag in range(threads)]
        for one in talks:
            one.result(60)


def test_a_batch_wakes_a_peer_once() -> None:
    """The bell of a peer that sleeps counts the rings."""
    with lanes(2) as options:
        bells = options[1]["bells"]
        box = Mailbox("g", (0, 1), 0, None, {}, lambda _peer: False, **options[0])  # type: ignore[arg-type]
        for batched, rings in ((True, 1), (False, 4)):
            if batched:
                box.begin_batch()
            for tag in range(4):
                box.post_send(1, tag, memoryview(b"data"), soon())
            if batched:
                box.end_batch()
            assert sum(_taken(bell) for bell in bells) == rings
        box.close()
    for bell in bells:
        os.close(bell)


def _taken(bell: int) -> int:
    try:
        return os.eventfd_read(bell)
    except BlockingIOError:
        return 0


def test_a_waiter_to_whom_yielding_costs_much_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then, for a hundred times as long as it took, nobody yields."""
    yields, elsewhere_s = 0, 0.0

    def yielded() -> None:
        nonlocal yields, elsewhere_s
        yields += 1
        elsewhere_s += 0.01

    monkeypatch.setattr(os, "sched_yield", yielded)
    monkeypatch.setattr(mailbox, "_now", lambda: time.monotonic() + elsewhere_s)
    with _mailboxes("lanes", 2) as (one, _other):
        never = one.post_receive(1, 0, into(4), soon())
        assert not never.wait(0.001)
        assert not never.wait(0.001)
        assert yields == 1
        elsewhere_s += 1.0
        assert not never.wait(0.001)
        assert yields == 2

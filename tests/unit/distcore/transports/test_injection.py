"""A plan of faults on the connections of whole groups: whom it hits, what heals, what is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from distcore import errors
from distcore.algorithms import collectives
from distcore.base.reduction import reduction_for
from distcore.engine.session import Session
from distcore.tcp.engine import connect
from distcore.tcp.side_channel import SideChannel
from distcore.testing import Fault, FaultPlan, Injection, Kind, inject
from distcore.transports import faulty
from distcore.transports.fault_plan import FaultClock
from distcore.transports.parcels import BUFFERED_BYTES
from tests.support.meshes import together

SUM = reduction_for(ReduceOp.SUM, torch.int64)
RANKS = (0, 10, 20)
LIMIT_S = 30.0
NUMBERS = 5000
"""In a call: one frame for each peer and step."""
SHORT, LONG = 100, 200_000
"""Bytes of messages: the one is sent at once, the other is offered first."""


class ClockOfTheFirst(FaultClock):
    """Its time 0 is when it is first asked after `begin`: on a crowded machine nobody knows how
    long after that somebody sends something."""

    may_begin = False

    def begin(self) -> None:
        self.may_begin = True

    @property
    def now_s(self) -> float:
        if self.may_begin:
            super().begin()
        return super().now_s


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranks that are threads have one clock: it begins when all are connected, not one of them."""
    monkeypatch.setattr(faulty, "connected", lambda _aside: None)
    monkeypatch.setattr(faulty, "FaultClock", ClockOfTheFirst)
    yield
    monkeypatch.undo()
    inject(None)


def planned(*faults: Fault) -> list[Injection]:
    """From now on these befall the groups; what happens of them."""
    happened: list[Injection] = []
    inject(FaultPlan(faults, happened=happened.append))
    return happened


def link(kind: Kind, sender: int = 0, receiver: int = 10, **details: Any) -> Fault:
    return Fault(kind, sender, receiver, **details)


def hole(at_s: float, for_s: float | None, sender: int = 0, receiver: int = 10) -> Fault:
    return link(Kind.BLACKHOLE, sender, receiver, frames=None, at_s=at_s, for_s=for_s)


def both_ways(at_s: float, for_s: float | None) -> tuple[Fault, Fault]:
    return hole(at_s, for_s), hole(at_s, for_s, 10, 0)


def on_groups(size: int, body: Callable[[Session, int], Any], name: str = "g") -> list[Any]:
    """Run `body(session, group rank)` on each rank of a group of threads."""
    store = dist.HashStore()
    barrier = threading.Barrier(size)

    def run(rank: int) -> Any:
        session = connect(store, name, RANKS[:size], rank, LIMIT_S)
        with closing(session):
            barrier.wait(LIMIT_S)
            faulty._clock.begin()
            try:
                return body(session, rank)
            finally:
                barrier.wait(LIMIT_S)

    return together(size, run)


def call(session: Session, text: str, timeout_s: float, body: Callable[[Any], object]) -> None:
    session.start(text, timeout_s, True, body, [])


def add_up(session: Session, timeout_s: float = LIMIT_S) -> None:
    numbers = torch.ones(NUMBERS, dtype=torch.int64)
    call(
        session,
        f"all_reduce({NUMBERS})",
        timeout_s,
        lambda net: collectives.all_reduce(net, numbers, SUM),
    )
    assert numbers.eq(session.size).all(), "a wrong sum"


def times(count: int, timeout_s: float = LIMIT_S) -> Callable[[Session, int], None]:
    def body(session: Session, _rank: int) -> None:
        for _ in range(count):
            add_up(session, timeout_s)

    return body


def until(seconds: float, timeout_s: float = LIMIT_S) -> Callable[[Session, int], None]:
    """Calls until then by the plan's clock; all ranks make as many."""

    def body(session: Session, _rank: int) -> None:
        going_on = torch.ones(1, dtype=torch.int64)
        while going_on.item():
            add_up(session, timeout_s)
            going_on.fill_(int(faulty._clock.now_s < seconds))
            call(
                session,
                "broadcast()",
                timeout_s,
                lambda net: collectives.broadcast(net, going_on, 0),
            )

    return body


BROKEN = {
    "reset": (link(Kind.RESET, first_frame=3), errors.PeerLost),
    "truncate": (link(Kind.TRUNCATE, first_frame=3, keep_bytes=60), errors.PeerLost),
    "corrupt": (link(Kind.CORRUPT, first_frame=3), errors.CorruptFrame),
    "duplicate": (link(Kind.DUPLICATE, first_frame=3), errors.CorruptFrame),
    "drop": (link(Kind.DROP, first_frame=3), errors.CorruptFrame),
    "corrupt, by time": (link(Kind.CORRUPT, at_s=0.0), errors.CorruptFrame),
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("what", BROKEN)
def test_every_rank_is_told_which_connection_it_was(what: str, size: int) -> None:
    fault, kind = BROKEN[what]
    happened = planned(fault)
    found = on_groups(size, times(20))
    for error in found:
        assert isinstance(error, kind), found
        assert set(error.link or ()) == {0, 10}, error
    if kind is errors.CorruptFrame:
        assert all(error.culprit == 0 and error.link == (0, 10) for error in found)
    assert [(one.fault, one.rank, one.peer, one.group) for one in happened] == [(fault, 0, 10, "g")]


@pytest.mark.parametrize("size", [2, 3])
def test_slow_links_change_nothing_but_the_time(size: int) -> None:
    happened = planned(
        link(Kind.DELAY, first_frame=0, frames=3, stride=4, delay_s=0.05),
        link(Kind.THROTTLE, 10, 0, frames=None, bytes_per_s=5e6),
    )
    began = time.monotonic()
    assert on_groups(size, times(12)) == [None] * size
    assert time.monotonic() - began >= 3 * 0.05
    delayed = [one.frame for one in happened if one.fault.kind is Kind.DELAY]
    assert delayed == [0, 4, 8]


def test_a_plan_for_other_ranks_leaves_a_group_as_it_is() -> None:
    def shares_memory(session: Session, _rank: int) -> bool:
        add_up(session)
        return session._mesh.board is not None

    planned(link(Kind.RESET, 0, 30), link(Kind.RESET, 40, 10))
    assert on_groups(3, shares_memory) == [True] * 3
    planned(link(Kind.RESET, 0, 10, first_frame=10**6))
    assert on_groups(3, shares_memory) == [False] * 3
    inject(None)
    assert on_groups(3, shares_memory) == [True] * 3


@pytest.mark.parametrize("size", [2, 3])
def test_a_partition_that_heals(size: int) -> None:
    happened = planned(*both_ways(0.0, 0.5))
    assert on_groups(size, until(1.0)) == [None] * size
    assert {(one.rank, one.peer) for one in happened} <= {(0, 10), (10, 0)}
    assert happened


@pytest.mark.parametrize("size", [2, 3])
def test_a_partition_that_does_not_heal(size: int) -> None:
    """Each end waits for the other, and nobody thinks that anybody died."""
    planned(*both_ways(0.0, None))
    began = time.monotonic()
    found = on_groups(size, until(LIMIT_S, timeout_s=2.5))
    assert time.monotonic() - began < 20
    assert all(isinstance(error, errors.DeadlineExceeded) for error in found), found
    assert {0, 10} in [set(error.link or ()) for error in found]


def test_a_black_hole_one_way_keeps_back_failures_too() -> None:
    """Rank 10's time runs out, for rank 0 cannot reach it, and rank 0 is told why."""
    planned(link(Kind.BLACKHOLE, first_frame=4, frames=None))
    sender, receiver = on_groups(2, times(20, timeout_s=2.5))
    assert isinstance(receiver, errors.DeadlineExceeded)
    assert (receiver.culprit, receiver.link) == (0, (0, 10))
    assert isinstance(sender, errors.DeadlineExceeded)


def test_a_black_hole_heals_with_the_first_frame_that_is_not_concerned() -> None:
    """The sender needs nothing back, so frames come behind the hole; all arrive, in order."""

    def body(session: Session, rank: int) -> list[int]:
        got = []
        for number in range(8):
            value = torch.tensor([number if rank == 0 else -1])

            def send(net: Any, value: torch.Tensor = value) -> None:
                collectives.broadcast(net, value, 0)

            call(session, "broadcast()", LIMIT_S, send)
            got.append(int(value.item()))
        return got

    happened = planned(link(Kind.BLACKHOLE, first_frame=2, frames=3))
    assert on_groups(2, body) == [list(range(8))] * 2
    assert [one.frame for one in happened] == [2]


def messages(size_bytes: int, timeout_s: float = LIMIT_S) -> Callable[[Session, int], Any]:
    """Rank 0 sends a message to rank 10; what either end has of it."""

    def body(session: Session, rank: int) -> Any:
        data = memoryview(bytearray(b"x" if rank == 0 else b" ") * size_bytes)
        box, deadline = session.mailbox(), time.monotonic() + timeout_s
        post = box.post_receive if rank else box.post_send
        posting = post(1 - rank, 7, data, deadline)
        posting.wait(LIMIT_S)
        return bytes(data[:1])

    return body


@pytest.mark.parametrize("size_bytes", [SHORT, LONG])
@pytest.mark.parametrize("way", [(0, 10), (10, 0)])
def test_messages_wait_for_a_link_to_heal(size_bytes: int, way: tuple[int, int]) -> None:
    """The connection is dialled in the hole; a connection needs both ways, and so do answers."""
    happened = planned(hole(0.0, 0.4, *way))
    began = time.monotonic()
    assert on_groups(2, messages(size_bytes)) == [b"x", b"x"]
    assert time.monotonic() - began >= 0.4
    if way == (0, 10):
        assert [one.frame for one in happened] == [None]  # a connection that was to be made


def test_answers_to_messages_are_held_back() -> None:
    """The message arrives, and its sender does not hear of that before the link has healed."""
    planned(hole(0.5, 0.5, 10, 0))

    def body(session: Session, rank: int) -> float:
        messages(SHORT)(session, rank)  # the connection is there
        while faulty._clock.now_s < 0.5:
            pause.wait(0.01)
        messages(BUFFERED_BYTES + 1)(session, rank)
        return faulty._clock.now_s

    pause = threading.Event()
    sender, _receiver = on_groups(2, body)
    assert sender >= 1.0


@pytest.mark.parametrize("size_bytes", [SHORT, LONG])
def test_messages_through_a_hole_that_stays(size_bytes: int) -> None:
    planned(*both_ways(0.0, None))
    found = on_groups(2, messages(size_bytes, timeout_s=0.5))
    assert all(isinstance(error, errors.DeadlineExceeded) for error in found), found


def beside(plan: Sequence[Fault]) -> tuple[list[Any], float]:
    """What ranks that compare notes beside a group find, and how long they take."""
    planned(*plan)
    store = dist.HashStore()

    def body(session: Session, rank: int) -> Any:
        with closing(SideChannel(store, "g", RANKS[:2], rank, LIMIT_S)) as channel:
            return [channel.agree(5, 0, LIMIT_S) for _ in range(5)]

    began = time.monotonic()
    return on_groups(2, body), time.monotonic() - began


def test_what_serves_the_debugger_counts_no_frames_but_is_cut_off_as_well() -> None:
    agreed = [[True] * 5] * 2
    frames = [link(kind, first_frame=1) for kind in (Kind.DROP, Kind.CORRUPT, Kind.RESET)]
    assert beside(frames)[0] == agreed
    found, took_s = beside(both_ways(0.0, 0.5))
    assert found == agreed
    assert took_s >= 0.4


BAD = {
    "no time": ({"for_s": 1.0}, "for_s: expected None where there is no `at_s`"),
    "before": ({"at_s": -1.0}, "at_s: expected a number of seconds, 0 or more"),
    "never": ({"at_s": 1.0, "for_s": 0}, "for_s: expected a number above 0 or None"),
    "both": ({"at_s": 1.0, "first_frame": 3}, "first_frame: expected none beside `at_s`"),
    "counted": ({"at_s": 1.0}, "frames: expected None beside `at_s`"),
    "stride": ({"stride": 0}, "stride: expected a whole number of at least 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_times_that_make_no_sense(what: str) -> None:
    details, text = BAD[what]
    with pytest.raises(ValueError, match="blackhole: ") as raised:
        link(Kind.BLACKHOLE, **details)
    assert text in str(raised.value)

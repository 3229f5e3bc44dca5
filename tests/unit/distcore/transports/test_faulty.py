"""Injected faults: each ends in the error that a real one would, or, if harmless, in right data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distcore import errors
from distcore.base.deadline import Deadline
from distcore.transports.base import Receive, Send
from distcore.transports.fault_plan import Fault, FaultPlan, Injection, Kind
from distcore.transports.faulty import FaultyLinks
from distcore.transports.frames import FRAME_BYTES
from distcore.transports.mailbox import Mailbox
from distcore.transports.mesh import Mesh
from tests.support.gate import Gate
from tests.support.meshes import Wires, together

LONG = 3 * FRAME_BYTES + 1000  # four frames
SHORT = 5000


class WrongData(Exception):
    """Bytes arrived that were not sent."""


def soon() -> float:
    return time.monotonic() + 30


def content(size: int, call: int) -> bytes:
    block = bytes((call * 7 + i * 13) % 251 for i in range(997))
    return (block * (size // 997 + 1))[:size]


def faulty_mesh(wires: Wires, plan: FaultPlan, rank: int, **options: bool) -> Mesh:
    def end(peer: int, _deadline: float) -> Any:
        return wires.end(rank, peer)

    mesh = Mesh("g", [0, 10], rank, FaultyLinks(plan, [0, 1], rank).connect(end), **options)
    wires.add(mesh)
    return mesh


def relay(
    plan: FaultPlan, size: int, calls: int = 2, timeout_s: float = 20.0, **options: bool
) -> list[Any]:
    """Rank 0 sends to rank 1, which answers with 8 bytes, `calls` times; what the ranks raised."""

    def body(rank: int) -> None:
        mesh = faulty_mesh(wires, plan, rank, **options)
        try:
            for call in range(calls):
                mesh.begin(f"relay({size})", Deadline.after(timeout_s if rank else 30))
                into = bytearray(8 if rank == 0 else size)
                if rank == 0:
                    mesh.exchange([Send(1, memoryview(content(size, call)))], [])
                    mesh.exchange([], [Receive(1, memoryview(into))])
                else:
                    mesh.exchange([], [Receive(0, memoryview(into))])
                    mesh.exchange([Send(0, memoryview(bytes(8)))], [])
                    if into != content(size, call):  # not by assert: 3 MB of difference
                        raise WrongData
                mesh.end()
        except BaseException as error:
            mesh.fail(error)
            raise

    with Wires(2, "tcp") as wires:
        return together(2, body)


class Log(list[Injection]):
    """What happened, as text. No deadline passes before the first of it."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = Gate()
        self._gate.__enter__()

    def happened(self, what: Injection) -> None:
        self._gate.come()
        self.append(what)

    def texts(self) -> list[str]:
        return [str(one) for one in self]


@pytest.fixture(autouse=True)
def _gates() -> Iterator[None]:
    yield
    Gate().__exit__()


def planned(*faults: Fault, seed: int = 0) -> tuple[FaultPlan, Log]:
    log = Log()
    return FaultPlan(faults, seed, log.happened), log


def one(kind: Kind, frame: int = 1, **details: Any) -> Fault:
    return Fault(kind, rank=0, peer=1, first_frame=frame, **details)


FATAL = {
    "reset": (one(Kind.RESET), errors.PeerLost, "rank 0 was lost in relay"),
    "truncate a header": (one(Kind.TRUNCATE, keep_bytes=20), errors.PeerLost, "rank 0 was lost"),
    "truncate a body": (one(Kind.TRUNCATE, keep_bytes=900), errors.PeerLost, "rank 0 was lost"),
    "corrupt": (one(Kind.CORRUPT), errors.CorruptFrame, "checksum is wrong"),
    "duplicate": (one(Kind.DUPLICATE), errors.CorruptFrame, "one is missing, or came twice"),
    "drop": (one(Kind.DROP), errors.CorruptFrame, "one is missing, or came twice"),
    "drop the last": (one(Kind.DROP, frame=3), errors.DeadlineExceeded, "waiting for rank 0"),
}


@pytest.mark.parametrize("what", FATAL)
def test_a_fault_in_a_long_message(what: str) -> None:
    fault, kind, text = FATAL[what]
    plan, log = planned(fault)
    timeout_s = 0.5 if kind is errors.DeadlineExceeded else 20.0
    began = time.monotonic()
    sender, receiver = relay(plan, LONG, timeout_s=timeout_s, checked=True)
    assert type(receiver) is kind, receiver
    assert receiver.culprit == 0
    assert text in str(receiver)
    assert "relay(3146728) #0" in str(receiver)
    assert isinstance(sender, errors.GroupFailed), sender
    assert time.monotonic() - began < 10
    assert log.texts() == [
        f"{fault.kind.value} of frame {fault.first_frame} from rank 0 to rank 1 (lane 0)"
    ]


def test_the_one_whose_connection_was_reset_names_its_peer() -> None:
    sender, _receiver = relay(planned(one(Kind.RESET))[0], LONG)
    assert isinstance(sender, errors.PeerLost)
    assert sender.culprit == 10


@pytest.mark.parametrize("kind", [Kind.DUPLICATE, Kind.DROP])
def test_whole_messages_twice_or_not_at_all(kind: Kind) -> None:
    plan, _log = planned(one(kind, frame=0))
    _sender, receiver = relay(plan, SHORT, timeout_s=0.5 if kind is Kind.DROP else 20)
    if kind is Kind.DROP:
        assert isinstance(receiver, errors.DeadlineExceeded)
        assert receiver.culprit == 0
    else:  # the copy is next in line when the following call begins
        assert isinstance(receiver, errors.CallMismatch)
        assert "rank 10 is in relay(5000) #1, but rank 0 is in relay(5000) #0" in str(receiver)


def test_corruption_goes_unnoticed_without_a_checksum() -> None:
    """What DISTCORE_CHECKSUM is for; and exactly one bit flips."""
    _sender, receiver = relay(planned(one(Kind.CORRUPT))[0], LONG)
    assert isinstance(receiver, WrongData)


HARMLESS = {
    "none": (),
    "of other connections": (Fault(Kind.RESET, rank=1, peer=2), Fault(Kind.DROP, lane=3)),
    "delay": (one(Kind.DELAY, delay_s=0.2),),
    "throttle": (Fault(Kind.THROTTLE, frames=None, bytes_per_s=20e6),),
    "both": (one(Kind.DELAY, delay_s=0.1), Fault(Kind.THROTTLE, frames=3, bytes_per_s=30e6)),
}


@pytest.mark.parametrize("what", HARMLESS)
@pytest.mark.parametrize("checked", [False, True])
def test_harmless_faults(what: str, checked: bool) -> None:
    plan, log = planned(*HARMLESS[what])
    began = time.monotonic()
    assert relay(plan, LONG, checked=checked) == [None, None]
    took_s = time.monotonic() - began
    if what == "delay":
        assert took_s >= 0.2
        assert len(log) == 1
    if what == "throttle":
        assert took_s >= 2 * LONG / 20e6
        assert len(log) == 2 * (4 + 1)  # both directions
    if what in ("none", "of other connections"):
        assert not log


def test_a_delay_beyond_the_timeout() -> None:
    plan, _log = planned(one(Kind.DELAY, delay_s=5))
    sender, receiver = relay(plan, LONG, timeout_s=0.3)
    assert isinstance(receiver, errors.DeadlineExceeded)
    assert receiver.culprit == 0
    assert isinstance(sender, errors.DeadlineExceeded)  # told by rank 10, though its own is stuck


def test_what_is_delayed_is_sent_after_the_close() -> None:
    plan, _log = planned(one(Kind.DELAY, frame=0, delay_s=0.3))

    def body(rank: int) -> None:
        connect = FaultyLinks(plan, [0, 1], rank).connect(
            lambda peer, _deadline: wires.end(rank, peer)
        )
        mesh = Mesh("g", [0, 1], rank, connect)
        mesh.begin("broadcast(src=0)", soon())
        if rank == 0:
            mesh.exchange([Send(1, memoryview(b"12345678"))], [])
        else:
            into = bytearray(8)
            mesh.exchange([], [Receive(0, memoryview(into))])
            assert into == b"12345678"
        mesh.end()
        mesh.close()

    with Wires(2, "tcp") as wires:
        assert together(2, body) == [None, None]


def test_the_same_seed_hits_the_same_frames() -> None:
    def hit(seed: int) -> list[int]:
        fault = Fault(Kind.DELAY, rank=0, frames=None, probability=0.3, delay_s=1e-6)
        plan, log = planned(fault, seed=seed)
        assert relay(plan, SHORT, calls=40) == [None, None]
        return [injection.frame for injection in log]

    assert hit(1) == hit(1) != hit(2)
    assert 3 <= len(hit(1)) <= 25


def test_shared_memory_works_through_it() -> None:
    """Long messages lie in memory there; their frames can be delayed and lost like others."""

    def run(plan: FaultPlan) -> list[Any]:
        def body(rank: int) -> bool:
            mesh = faulty_mesh(wires, plan, rank)
            mesh.begin("swap()", soon())
            into = bytearray(LONG)
            try:
                mesh.exchange(
                    [Send(1 - rank, memoryview(content(LONG, rank)))],
                    [Receive(1 - rank, memoryview(into))],
                )
                mesh.end()
            except BaseException as error:
                mesh.fail(error)
                raise
            return into == content(LONG, 1 - rank)

        with Wires(2, "shm") as wires:
            return together(2, body)

    delayed = Fault(Kind.DELAY, frames=None, probability=0.5, delay_s=0.01)
    for plan in (FaultPlan((Fault(Kind.DROP, lane=9),)), FaultPlan((delayed,))):
        assert run(plan) == [True, True]
    _first, second = run(planned(one(Kind.RESET, frame=3))[0])
    assert isinstance(second, errors.PeerLost)
    assert second.culprit == 0


def messages(
    plan: FaultPlan, size: int, timeout_s: float = 20.0, checked: bool = False
) -> list[Any]:
    """Two messages from rank 0 to rank 1, each in a mailbox; what the sends and receives raised."""
    boxes: list[Mailbox] = []

    def dial(peer: int, _deadline: float) -> Any:
        one_end, other_end = wires.end(0, 1), wires.end(1, 0)
        assert boxes[peer].accept(0, other_end)
        return one_end

    found: list[Any] = []
    with Wires(2, "tcp") as wires:
        boxes += [
            Mailbox(
                "g",
                [0, 10],
                0,
                FaultyLinks(plan, [0, 1], 0).connect(dial, lane=15),
                {},
                lambda _peer: False,
                checked=checked,
            ),
            Mailbox("g", [0, 10], 1, dial, {}, lambda _peer: False, checked=checked),
        ]
        until = Deadline.after(timeout_s)
        parts = [bytearray(size) for _ in range(2)]
        posted = [boxes[0].post_send(1, 7, memoryview(content(size, i)), until) for i in range(2)]
        posted += [boxes[1].post_receive(0, 7, memoryview(part), until) for part in parts]
        for posting in posted:
            try:
                posting.wait(30)
                found.append(None)
            except errors.GroupFailed as error:
                found.append(error)
        for index, part in enumerate(parts):
            if found[2 + index] is None and part != content(size, index):
                found[2 + index] = "wrong data"
        for box in boxes:
            box.close()
    return found


@pytest.mark.parametrize("size", [SHORT, LONG])
@pytest.mark.parametrize("checked", [False, True])
def test_messages_through_harmless_faults(size: int, checked: bool) -> None:
    for faults in ((), (Fault(Kind.DELAY, frames=4, delay_s=0.02),)):
        plan, log = planned(*faults)
        assert messages(plan, size, checked=checked) == [None] * 4
        assert len(log) == (min(4, 2 if size == SHORT else 10) if faults else 0)


def test_messages_through_fatal_faults() -> None:
    reset = messages(planned(Fault(Kind.RESET, lane=15, first_frame=2))[0], LONG)
    assert all(isinstance(error, errors.PeerLost) for error in reset), reset
    assert reset[2].culprit == 0
    truncated = messages(planned(Fault(Kind.TRUNCATE, first_frame=1, keep_bytes=99))[0], SHORT)
    assert truncated[2] is None
    assert isinstance(truncated[3], errors.PeerLost)
    dropped = messages(planned(Fault(Kind.DROP, first_frame=1))[0], SHORT, timeout_s=1.5)
    assert dropped[:3] == [None] * 3  # it was buffered
    assert isinstance(dropped[3], errors.DeadlineExceeded)
    assert dropped[3].culprit == 0


NAMES = {SHORT: "message 0 (5000 bytes, tag=7)", LONG: "message 0 (3146728 bytes, tag=7)"}
FIRST_DATA = {SHORT: 0, LONG: 2}
"""Two long messages are offered first."""


@pytest.mark.parametrize("size", [SHORT, LONG])
@pytest.mark.parametrize("checked", [False, True])
def test_a_message_with_a_wrong_bit(size: int, checked: bool) -> None:
    plan, log = planned(Fault(Kind.CORRUPT, lane=15, first_frame=FIRST_DATA[size]))
    sent, next_sent, received, _ = found = messages(plan, size, checked=checked)
    assert len(log) == 1
    if not checked:
        assert found == [None, None, "wrong data", None]
        return
    for error in (sent, next_sent, received):
        # A long one is sent when the system has it; of two short ones there is room for one.
        if error is not None or (size == SHORT and error is next_sent):
            assert type(error) is errors.CorruptFrame, found
            assert error.culprit == 0
            assert f"on the connection from rank 0 to rank 10: in {NAMES[size]}" in str(error)
            assert "checksum is wrong" in str(error)
    assert received is not None


@pytest.mark.parametrize(("size", "frame"), [(SHORT, 0), (LONG, 0), (LONG, 3)])
@pytest.mark.parametrize("kind", [Kind.DROP, Kind.DUPLICATE])
def test_a_frame_of_a_message_that_is_lost_or_comes_twice(
    size: int, frame: int, kind: Kind
) -> None:
    """Found at the next one, long before the deadline, and without a checksum."""
    began = time.monotonic()
    *_, last = messages(planned(Fault(kind, lane=15, first_frame=frame))[0], size)
    assert time.monotonic() - began < 10
    assert type(last) is errors.CorruptFrame
    assert last.culprit == 0
    assert "on the connection from rank 0 to rank 10: frame" in str(last)
    assert "one is missing, or came twice" in str(last)


def test_the_last_piece_of_a_message_is_lost() -> None:
    plan, _log = planned(Fault(Kind.DROP, first_frame=9))
    *_, last = messages(plan, LONG, timeout_s=1.5)
    assert type(last) is errors.DeadlineExceeded
    assert last.culprit == 0
    assert "rank 0 sent 3145728 of 3146728 bytes" in str(last)


def test_garbled_messages_burn_no_processor_time() -> None:
    """A mailbox whose peer talks nonsense ends what is posted, and is quiet."""
    plan, _log = planned(Fault(Kind.DUPLICATE, first_frame=2))  # a piece of a long message
    before = os.times()
    began = time.monotonic()
    found = messages(plan, LONG, timeout_s=20)
    assert time.monotonic() - began < 10
    assert any(isinstance(error, errors.GroupFailed) for error in found), found
    after = os.times()
    assert after.user + after.system - before.user - before.system < 3


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "kind": (lambda: Fault("drop"), "kind: expected one of Kind.DELAY"),  # type: ignore[arg-type]
    "rank": (lambda: Fault(Kind.DROP, rank=-1), "drop: rank: expected a whole number of at least"),
    "itself": (lambda: Fault(Kind.DROP, rank=1, peer=1), "peer: expected another rank"),
    "frames": (lambda: Fault(Kind.DROP, frames=0), "frames: expected a whole number of at least 1"),
    "first": (lambda: Fault(Kind.DROP, first_frame=1.5), "first_frame: expected a whole"),  # type: ignore[arg-type]
    "chance": (lambda: Fault(Kind.DROP, probability=1.5), "probability: expected more than 0"),
    "no delay": (lambda: Fault(Kind.DELAY), "delay: delay_s: expected a number for delay"),
    "delay": (lambda: Fault(Kind.DELAY, delay_s=-1), "delay_s: expected a number above 0"),
    "rate": (lambda: Fault(Kind.THROTTLE, bytes_per_s=0), "bytes_per_s: expected a number above"),
    "extra": (lambda: Fault(Kind.RESET, keep_bytes=3), "keep_bytes: expected a number for trunc"),
    "plan": (lambda: FaultPlan([Fault(Kind.RESET)]), "expected a tuple of Fault"),  # type: ignore[arg-type]
    "seed": (lambda: FaultPlan((), seed="x"), "seed: expected an int, given 'x'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BAD)
def test_faults_that_make_no_sense(what: str) -> None:
    make, text = BAD[what]
    with pytest.raises((ValueError, TypeError)) as raised:
        make()
    assert text in str(raised.value)

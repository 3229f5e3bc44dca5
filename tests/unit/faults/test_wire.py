"""What a wire does to packets: to the frames that its faults mean, and to no other."""

from __future__ import annotations

import random
import socket
import struct
from dataclasses import dataclass, field

import pytest

from distdebug.faults.plan import Plan
from distdebug.faults.spec import parse
from distdebug.faults.wire import (
    ACK,
    FIN,
    LEAST_CORRUPTED_BYTES,
    RST,
    SYN,
    Clock,
    Leaving,
    Segment,
    Wire,
    cut_short,
    destination,
    is_after,
    reset_of_receiver,
    reset_of_sender,
    segment,
    with_flipped_bit,
)
from tests.support.packets import ONE, OTHER, tcp, udp


def folded(data: bytes) -> int:
    """The sum of RFC 1071 over data with its checksum in it: 0xffff where that is right."""
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def is_valid(packet: bytes) -> bool:
    pseudo = packet[12:20] + struct.pack("!HH", 6, len(packet) - 20)
    whole = struct.unpack_from("!H", packet, 2)[0] == len(packet)
    return whole and folded(packet[:20]) == folded(pseudo + packet[20:]) == 0xFFFF


def read(packet: bytes) -> Segment:
    found = segment(packet)
    assert found is not None
    return found


def test_a_segment_is_read() -> None:
    given = read(tcp(b"hello", seq=7, ack=9))
    assert (given.seq, given.ack, given.flags) == (7, 9, ACK)
    assert given.packet[given.data_at :] == b"hello"
    assert (given.data_bytes, given.end_seq) == (5, 12)
    assert destination(given.packet) == socket.inet_aton(OTHER)


@pytest.mark.parametrize("data", [b"x", b"hello", bytes(range(256)) * 3])
def test_what_is_made_of_it_is_valid(data: bytes) -> None:
    given = read(tcp(data, seq=0xFFFF_FFF0, ack=77))
    flipped = with_flipped_bit(given, 3)
    assert is_valid(flipped)
    assert flipped[given.data_at :] == data[:-1] + bytes([data[-1] ^ 8])
    short = cut_short(given, len(data) // 2)
    assert is_valid(short)
    assert read(short).flags & FIN
    assert short[given.data_at :] == data[: len(data) // 2]
    forward, back = read(reset_of_receiver(given)), read(reset_of_sender(given))
    assert is_valid(forward.packet)
    assert is_valid(back.packet)
    assert (forward.flags, forward.seq, forward.ports) == (RST, given.seq, given.ports)
    assert (back.flags, back.seq, back.ports) == (RST, 77, given.ports[2:] + given.ports[:2])
    assert destination(back.packet) == socket.inet_aton(ONE)


def test_garbage_is_no_segment() -> None:
    source = random.Random(1)
    whole = tcp(b"hello")
    for _ in range(3000):
        broken = bytearray(whole[: source.randrange(len(whole) + 1)])
        for _ in range(source.randrange(1, 6)):
            if broken:
                broken[source.randrange(len(broken))] = source.randrange(256)
        found = segment(bytes(broken))
        assert found is None or 40 <= found.data_at <= len(broken)
        assert len(destination(bytes(broken))) in (0, 4)
    for length in range(40):
        assert segment(whole[:length]) is None


def test_sequence_numbers_go_round() -> None:
    assert is_after(5, 4)
    assert not is_after(4, 4)
    assert not is_after(4, 5)
    assert is_after(3, 0xFFFF_FFFE)
    assert not is_after(0xFFFF_FFFE, 3)


SIZE = 100


@dataclass
class Sender:
    """Sends frames of SIZE bytes on a wire with these faults; the time is as told."""

    specs: tuple[str, ...]
    now_s: float = 0.0
    began_s: float = float("inf")
    told: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        faults = tuple(parse(spec, number) for number, spec in enumerate(self.specs))
        self.clock = Clock(self.began_s)

        def happened(number: int, where: str) -> None:
            self.told.append((number, where))

        self.wire = Wire(0, 1, Plan(faults, 7), self.clock, happened)

    def send(self, packet: bytes) -> list[Leaving]:
        return self.wire.take(packet, self.now_s)

    def frame(self, number: int, port: int = 4000) -> list[Leaving]:
        return self.send(the_frame(number, port))

    def came(self, numbers: range) -> list[int]:
        """Of these frames, those that come through as they are, at once."""
        return [n for n in numbers if self.frame(n) == [Leaving(self.now_s, the_frame(n))]]


def the_frame(number: int, port: int = 4000) -> bytes:
    return tcp(bytes([number % 256]) * SIZE, seq=SIZE * number, ack=55, port=port)


def test_a_wire_without_faults_is_none() -> None:
    assert not Sender(()).wire
    assert not Sender(("link(1->0, drop)",)).wire
    assert not Sender(("kill(rank=0)",)).wire
    assert Sender(("link(0<->1, drop)",)).wire
    assert Sender(("partition({0}|{1,2})",)).wire


def test_a_frame_is_lost_once() -> None:
    sender = Sender(("link(0->1, drop) @ frame 2",))
    assert sender.came(range(5)) == [0, 1, 3, 4]
    assert sender.frame(2) == [Leaving(0.0, the_frame(2))]  # TCP sends it again
    assert sender.told == [(0, "drop of frame 2 from rank 0 to rank 1")]


def test_of_several_frames_each_is_lost_once() -> None:
    sender = Sender(("link(0->1, drop) @ frame 1..2",))
    assert sender.came(range(4)) == [0, 3]
    assert sender.came(range(1, 3)) == [1, 2]
    assert len(sender.told) == 2


def test_without_an_end_repetitions_are_lost_as_well() -> None:
    sender = Sender(("link(0->1, drop) @ frame 2..",))
    assert sender.came(range(4)) == [0, 1]
    assert sender.came(range(2, 4)) == []


def test_what_has_no_data_is_no_frame() -> None:
    sender = Sender(("link(0->1, drop)",))
    for flags in (SYN, ACK, FIN | ACK, RST):
        empty = tcp(flags=flags)
        assert sender.send(empty) == [Leaving(0.0, empty)]
    assert not sender.told
    assert sender.frame(0) == []


def test_each_connection_counts_its_own() -> None:
    sender = Sender(("link(0->1, drop) @ frame 1",))
    sender.frame(0)
    assert sender.frame(0, port=4001)
    assert sender.frame(1, port=4001) == []
    assert sender.frame(1) == []
    sender.send(tcp(flags=SYN, port=4001))  # the ports again, another connection
    assert sender.frame(1, port=4001)
    assert sender.frame(2, port=4001) == []


def test_doubled() -> None:
    sender = Sender(("link(0->1, duplicate) @ frame 1",))
    assert len(sender.frame(0)) == 1
    assert sender.frame(1) == 2 * [Leaving(0.0, the_frame(1))]


def test_late_and_in_order() -> None:
    sender = Sender(("link(0->1, delay=5ms) @ frame 1",))
    assert sender.frame(0)[0].at_s == 0.0
    assert sender.frame(1)[0].at_s == pytest.approx(0.005)
    sender.now_s = 0.001
    assert sender.frame(2)[0].at_s == pytest.approx(0.005)  # behind the one before
    assert sender.send(tcp())[0].at_s == pytest.approx(0.005)
    sender.now_s = 0.006
    assert sender.frame(3)[0].at_s == pytest.approx(0.006)


def test_all_late_are_late_together() -> None:
    sender = Sender(("link(0->1, delay=5ms)",))
    assert [sender.frame(n)[0].at_s for n in range(3)] == pytest.approx([0.005] * 3)


def test_a_rate() -> None:
    sender = Sender(("link(0->1, rate=14k)",))  # 140 bytes with their headers
    assert [sender.frame(n)[0].at_s for n in range(3)] == pytest.approx([0.01, 0.02, 0.03])
    sender.now_s = 1.0
    assert sender.frame(3)[0].at_s == pytest.approx(1.01)


def test_a_full_queue_loses_what_comes() -> None:
    sender = Sender(("link(0->1, rate=1k)",))
    sender.wire.queued_bytes = 1 << 30
    assert sender.frame(0) == []


def test_damaged_for_the_program_and_not_for_tcp() -> None:
    sender = Sender(("link(0->1, corrupt) @ frame 1",))
    small = tcp(bytes(LEAST_CORRUPTED_BYTES - 1), seq=SIZE)
    assert len(sender.came(range(1))) == 1
    assert sender.send(small) == [Leaving(0.0, small)]  # a header alone: the next one it is
    ((leaving),) = sender.frame(2)
    given, came = segment(the_frame(2)), segment(leaving.packet)
    assert given is not None
    assert came is not None
    assert came.packet[40:-1] == given.packet[40:-1]
    assert (came.packet[-1] ^ given.packet[-1]).bit_count() == 1
    assert sender.came(range(3, 6)) == [3, 4, 5]
    again = Sender(("link(0->1, corrupt) @ frame 1",))
    again.came(range(1))
    again.send(small)
    assert again.frame(2) == [leaving]


def test_cut_short() -> None:
    sender = Sender(("link(0->1, truncate) @ frame 1",))
    sender.frame(0)
    (leaving,) = sender.frame(1)
    short = segment(leaving.packet)
    assert short is not None
    assert short.flags & FIN
    assert short.data_bytes == SIZE // 2
    assert sender.came(range(1, 4)) == []  # nothing comes behind the end
    gone = tcp(flags=RST, seq=500)
    assert sender.send(gone) == [Leaving(0.0, gone)]


def test_reset_at_both_ends() -> None:
    sender = Sender(("link(0->1, reset) @ frame 1",))
    sender.frame(0)
    forward, back = sender.frame(1)
    assert not forward.back
    assert back.back
    for leaving, seq in ((forward, SIZE), (back, 55)):
        reset = segment(leaving.packet)
        assert reset is not None
        assert (reset.flags, reset.seq) == (RST, seq)
    (again,) = sender.frame(2)  # who has not noticed is told again
    assert again.back
    assert sender.frame(0, port=4001) == [Leaving(0.0, the_frame(0, 4001))]  # no other connection
    assert len(sender.told) == 1


def test_a_hole_of_frames_closes_with_the_next_one() -> None:
    sender = Sender(("link(0->1, blackhole) @ frame 2..3",))
    assert sender.came(range(4)) == [0, 1]
    assert sender.send(tcp()) == []  # no acknowledgement either
    assert sender.came(range(2, 4)) == []
    assert sender.came(range(4, 5)) == [4]
    assert sender.came(range(2, 4)) == [2, 3]
    assert len(sender.told) == 1


def test_a_hole_of_a_time() -> None:
    sender = Sender(("partition({0}|{1}) @ 1s for 2s",))
    sender.now_s = 50.0
    assert sender.came(range(2)) == [0, 1]  # no group is there yet
    sender.clock.began_s = 49.5
    assert sender.came(range(2, 4)) == [2, 3]
    sender.now_s = 50.6
    assert sender.came(range(4, 6)) == []
    assert sender.send(tcp(flags=SYN)) == []  # nor is a connection made
    sender.now_s = 52.6
    assert sender.came(range(4, 6)) == [4, 5]
    assert sender.told == [(0, "blackhole of what is sent from 1.1 s on from rank 0 to rank 1")]


def test_once_from_a_time_on() -> None:
    sender = Sender(("link(0->1, drop) @ 1s",), began_s=0.0)
    assert sender.came(range(2)) == [0, 1]
    sender.now_s = 1.0
    assert sender.came(range(2)) == [0, 1]  # repetitions
    assert sender.came(range(2, 5)) == [3, 4]


def test_for_a_time() -> None:
    sender = Sender(("link(0->1, drop) @ 1s for 1s",), began_s=0.0)
    sender.now_s = 1.5
    assert sender.came(range(3)) == []
    assert sender.came(range(3)) == []
    sender.now_s = 2.5
    assert sender.came(range(3)) == [0, 1, 2]


def test_other_protocols() -> None:
    message = udp(b"x" * 80)
    for what in ("corrupt", "truncate", "reset"):
        sender = Sender((f"link(0->1, {what})",))
        assert sender.send(message) == [Leaving(0.0, message)]
        assert not sender.told
    sender = Sender(("link(0->1, drop) @ frame 1",))
    assert [bool(sender.send(message)) for _ in range(3)] == [True, False, True]

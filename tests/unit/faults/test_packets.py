"""Packets are read as they are, and what is made of them is valid: its checksums are right."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from distdebug.faults.packets import (
    ACK,
    FIN,
    RST,
    Segment,
    cut_short,
    destination,
    is_after,
    reset_of_receiver,
    reset_of_sender,
    segment,
    with_flipped_bit,
)
from tests.support.packets import ONE, OTHER, tcp


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

"""Reads an IPv4 packet so far as something is to be done to it, and makes packets of it."""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass

TCP = 6
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
_BEFORE_PORTS = struct.Struct("!BxHHHBBH4s4s")
_HEAD = struct.Struct("!HHIIBBHHH")
_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment. `packet` is all of it; its data are `packet[data_at:]`. Ports are in
    `ports`, source before destination, as they stand in the packet."""

    packet: bytes
    tcp_at: int
    data_at: int
    ports: bytes
    seq: int
    ack: int
    flags: int

    @property
    def data_bytes(self) -> int:
        return len(self.packet) - self.data_at

    @property
    def end_seq(self) -> int:
        """The sequence number behind its data."""
        return (self.seq + self.data_bytes) & _MASK


def destination(packet: bytes | bytearray | memoryview) -> bytes:
    """The four bytes of the address that an IPv4 packet goes to; b"" for what is none."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return b""
    return bytes(packet[16:20])


def segment(packet: bytes) -> Segment | None:
    """The whole TCP segment in the packet; None for anything else, also for a fragment."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != TCP:
        return None
    tcp_at = 4 * (packet[0] & 15)
    total, fragment = struct.unpack_from("!H2xH", packet, 2)
    if tcp_at < 20 or total != len(packet) or fragment & 0x3FFF or total < tcp_at + _HEAD.size:
        return None
    _, _, seq, ack, offset, flags, *_ = _HEAD.unpack_from(packet, tcp_at)
    data_at = tcp_at + 4 * (offset >> 4)
    if not tcp_at + _HEAD.size <= data_at <= total:
        return None
    return Segment(packet, tcp_at, data_at, packet[tcp_at : tcp_at + 4], seq, ack, flags)


def is_after(one: int, other: int) -> bool:
    """Whether one sequence number comes after the other, modulo 2**32."""
    return 0 < (one - other) & _MASK < 1 << 31


def with_flipped_bit(given: Segment, bit: int) -> bytes:
    """The packet with this bit of its last byte changed, and a checksum that is right again: what
    the receiver's program is given."""
    changed = bytearray(given.packet)
    changed[-1] ^= 1 << bit
    return _summed(changed, given.tcp_at)


def cut_short(given: Segment, keep_bytes: int) -> bytes:
    """The packet with this much of its data alone, and with the end of the connection behind it."""
    changed = bytearray(given.packet[: given.data_at + keep_bytes])
    changed[2:4] = len(changed).to_bytes(2, "big")
    changed[given.tcp_at + 13] |= FIN | PSH
    return _summed(changed, given.tcp_at)


def reset_of_receiver(given: Segment) -> bytes:
    """A reset of the connection, as if the segment's sender had sent it in its place."""
    source, target = given.packet[12:16], given.packet[16:20]
    return _reset(source, target, given.ports, given.seq)


def reset_of_sender(given: Segment) -> bytes:
    """A reset of the connection, as if the segment's receiver had answered with it."""
    source, target = given.packet[16:20], given.packet[12:16]
    return _reset(source, target, given.ports[2:] + given.ports[:2], given.ack)


def _reset(source: bytes, target: bytes, ports: bytes, seq: int) -> bytes:
    head = _BEFORE_PORTS.pack(0x45, 40, 0, 0, 64, TCP, 0, source, target)
    tail = _HEAD.pack(0, 0, seq, 0, 5 << 4, RST, 0, 0, 0)
    return _summed(bytearray(head + ports + tail[4:]), 20)


def _summed(packet: bytearray, tcp_at: int) -> bytes:
    """The packet with the checksums of its two headers."""
    packet[10:12] = bytes(2)
    packet[10:12] = _checksum(packet[:tcp_at])
    packet[tcp_at + 16 : tcp_at + 18] = bytes(2)
    length = len(packet) - tcp_at
    pseudo = packet[12:20] + struct.pack("!HH", TCP, length)
    packet[tcp_at + 16 : tcp_at + 18] = _checksum(pseudo + packet[tcp_at:])
    return bytes(packet)


def _checksum(data: bytearray) -> bytes:
    """Returns the checksum of RFC 1071."""
    words = array("H", bytes(data) + bytes(len(data) % 2))
    if sys.byteorder == "little":
        words.byteswap()
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")

"""IPv4 packets with a TCP segment in them, for tests; their checksums are left out."""

from __future__ import annotations

import socket
import struct

from distdebug.faults.wire import ACK

ONE, OTHER = "10.213.0.1", "10.213.0.2"
"""Sender and receiver."""


def tcp(
    data: bytes = b"",
    *,
    seq: int = 0,
    ack: int = 0,
    flags: int = ACK,
    port: int = 4000,
) -> bytes:
    """From ONE's `port` to OTHER's port 5000."""
    total = 40 + len(data)
    addresses = socket.inet_aton(ONE) + socket.inet_aton(OTHER)
    head = struct.pack("!BBHHHBBH", 0x45, 0, total, 0, 0x4000, 64, 6, 0) + addresses
    return head + struct.pack("!HHIIBBHHH", port, 5000, seq, ack, 5 << 4, flags, 9, 0, 0) + data


def udp(data: bytes) -> bytes:
    """The same with UDP."""
    addresses = socket.inet_aton(ONE) + socket.inet_aton(OTHER)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(data), 0, 0x4000, 64, 17, 0) + addresses
    return head + struct.pack("!HHHH", 4000, 5000, 8 + len(data), 0) + data

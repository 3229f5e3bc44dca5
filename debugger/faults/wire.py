"""The way from one rank to another in a network of the ranks' own: what its faults do to a packet.

No sockets and no clock: packets and times go in, packets and times come out. What passes here is
what the network carries, so TCP repairs what it can: a packet that is lost or doubled once costs a
program time, not data. A fault with an end counts the frames (segments with data) of a connection
that bring something new; a repetition is nobody's frame, and is hit only by faults without an end
and by those of a time.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .plan import Moment, Plan, When

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


LEAST_CORRUPTED_BYTES = 65
"""The least data of a frame that is corrupted: what is shorter is a header of the backend's own
more often than not."""
MOST_QUEUED_BYTES = 64 << 20
"""A slow link holds that much; what comes then is lost, as at any router."""
_LASTING = frozenset({"delay", "rate", "blackhole"})
"""The faults that go on from their time to the end, where the others happen once."""
_NEEDS_TCP = frozenset({"corrupt", "truncate", "reset"})


@dataclass(slots=True)
class Clock:
    """Seconds since the default group was there on all ranks, minus infinity before."""

    began_s: float = float("inf")

    def at(self, now_s: float) -> float:
        return now_s - self.began_s


@dataclass(frozen=True, slots=True)
class Leaving:
    """A packet on its way: when it goes on, and whether it is an answer to who sent."""

    at_s: float
    packet: bytes
    back: bool = False


@dataclass(slots=True, eq=False)
class _OnWire:
    """A fault of the plan on this wire."""

    number: int
    what: str
    moment: Moment
    arguments: Mapping[str, Any]
    hits: int = 0
    reported: bool = False

    @property
    def is_timed(self) -> bool:
        return self.moment.when is When.TIME

    def is_on(self, clock_s: float) -> bool:
        """Whether a fault of a time is on."""
        moment = self.moment
        if not self.is_timed or clock_s < moment.at_s:
            return False
        if moment.for_s is not None:
            return clock_s < moment.at_s + moment.for_s
        return self.what in _LASTING or not self.hits


@dataclass(slots=True)
class _Flow:
    """A direction of a connection."""

    frames: int = 0
    end_seq: int | None = None
    hole: bool = False
    over: str = ""
    hits: dict[int, int] = field(default_factory=dict)


class Wire:
    """The way from `sender` to `receiver`. `happened(number, where)` is called for each fault just
    before it is done."""

    def __init__(
        self, sender: int, receiver: int, plan: Plan, clock: Clock, happened: Callable[..., None]
    ) -> None:
        self.sender, self.receiver = sender, receiver
        self.queued_bytes = 0
        """The bytes on their way; kept by whoever sends them on."""
        self._clock = clock
        self._happened = happened
        self._seed = plan.seed
        self._faults = [
            _OnWire(one.number, one.arguments.get("what", "blackhole"), one.moment, one.arguments)
            for one in plan.faults
            if (sender, receiver) in one.pairs
        ]
        self._flows: dict[bytes, _Flow] = {}
        self._free_at_s = 0.0

    def __bool__(self) -> bool:
        """Whether any fault is about it."""
        return bool(self._faults)

    # -- packets -----------------------------------------------------------------------------------

    def take(self, packet: bytes, now_s: float) -> list[Leaving]:
        """Returns what becomes of a packet that is sent now."""
        clock_s = self._clock.at(now_s)
        holes = [one for one in self._faults if one.what == "blackhole" and one.is_on(clock_s)]
        for hole in holes:
            if not hole.reported:
                hole.reported = True
                self._tell(hole, f"what is sent from {clock_s:.1f} s on")
        if holes or self.queued_bytes > MOST_QUEUED_BYTES:
            return []
        given = segment(packet)
        key = given.ports if given is not None else b""
        if given is not None and given.flags & SYN:
            self._flows.pop(key, None)  # the ports may have been another connection's
        flow = self._flows.setdefault(key, _Flow())
        if given is not None and flow.over and not given.flags & RST:
            return [Leaving(now_s, reset_of_sender(given), True)] if flow.over == "reset" else []
        is_frame = given is None or given.data_bytes > 0
        due = self._due(given, flow, clock_s) if is_frame else []
        if flow.hole:
            return []
        return self._do(due, given, packet, flow, now_s)

    def _due(self, given: Segment | None, flow: _Flow, clock_s: float) -> list[_OnWire]:
        """Returns what happens to this frame."""
        new = given is None or flow.end_seq is None or is_after(given.end_seq, flow.end_seq)
        due = [one for one in self._faults if self._hits(one, given, flow, clock_s, new)]
        if new:
            flow.frames += 1
            flow.end_seq = given.end_seq if given is not None else None
            holes = [one for one in due if one.what == "blackhole"]
            if holes and not flow.hole:
                self._tell_frame(holes[0], flow)
            flow.hole = bool(holes)
        for one in due:
            one.hits += 1
            flow.hits[one.number] = flow.hits.get(one.number, 0) + 1
        return due

    def _hits(
        self, one: _OnWire, given: Segment | None, flow: _Flow, clock_s: float, new: bool
    ) -> bool:
        if given is None and one.what in _NEEDS_TCP:
            return False
        moment = one.moment
        if one.is_timed:
            lasts = moment.for_s is not None or one.what in _LASTING
            on = one.what != "blackhole" and one.is_on(clock_s) and (new or lasts)
        elif not new:
            on = moment.last is None and moment.covers(max(flow.frames - 1, 0))
        elif one.what == "corrupt" and moment.last is not None:
            # The first ones from there on that have data to spoil.
            count = (moment.last - moment.first) // moment.stride + 1
            on = flow.frames >= moment.first and flow.hits.get(one.number, 0) < count
        else:
            on = moment.covers(flow.frames)
        return on and not (
            one.what == "corrupt" and (not given or given.data_bytes < LEAST_CORRUPTED_BYTES)
        )

    def _do(
        self,
        due: Sequence[_OnWire],
        given: Segment | None,
        packet: bytes,
        flow: _Flow,
        now_s: float,
    ) -> list[Leaving]:
        at_s = max(now_s, self._free_at_s)
        copies = 1
        more: list[Leaving] = []
        for one in due:
            if one.what != "blackhole":
                self._tell_frame(one, flow)
            match one.what:
                case "drop":
                    copies = 0
                case "duplicate":
                    copies *= 2
                case "delay":
                    at_s = max(at_s, now_s + one.arguments["delay_s"])
                case "rate":
                    at_s += len(packet) / one.arguments["bytes_per_s"]
                case "corrupt" if given is not None:
                    place = (self._seed, self.sender, self.receiver, one.number, flow.frames)
                    bit = random.Random(str(place)).randrange(8)
                    packet = with_flipped_bit(given, bit)
                case "truncate" if given is not None:
                    packet, flow.over = cut_short(given, given.data_bytes // 2), "truncate"
                case "reset" if given is not None:
                    packet, flow.over = reset_of_receiver(given), "reset"
                    more.append(Leaving(now_s, reset_of_sender(given), True))
        self._free_at_s = at_s
        return [Leaving(at_s, packet)] * copies + more

    # -- words -------------------------------------------------------------------------------------

    def _tell_frame(self, one: _OnWire, flow: _Flow) -> None:
        self._tell(one, f"frame {max(flow.frames - 1, 0)}")

    def _tell(self, one: _OnWire, of: str) -> None:
        where = f"{one.what} of {of} from rank {self.sender} to rank {self.receiver}"
        self._happened(one.number, where)

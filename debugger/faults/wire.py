"""The way from one rank to another in a network of the ranks' own: what its faults do to a packet.

No sockets and no clock: packets and times go in, packets and times come out. What passes here is
what the network carries, so TCP repairs what it can: a packet that is lost or doubled once costs a
program time, not data. A fault with an end counts the frames (segments with data) of a connection
that bring something new; a repetition is nobody's frame, and is hit only by faults without an end
and by those of a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .packets import (
    RST,
    SYN,
    Segment,
    cut_short,
    is_after,
    reset_of_receiver,
    reset_of_sender,
    segment,
    with_flipped_bit,
)
from .plan import Fault, Moment, Plan, When

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
        self._faults = [one for one in map(self._own, plan.faults) if one is not None]
        self._flows: dict[bytes, _Flow] = {}
        self._free_at_s = 0.0

    def __bool__(self) -> bool:
        """Whether any fault is about it."""
        return bool(self._faults)

    def _own(self, fault: Fault) -> _OnWire | None:
        if (self.sender, self.receiver) not in _pairs(fault):
            return None
        what = fault.arguments.get("what", "blackhole")
        return _OnWire(fault.number, what, fault.moment, fault.arguments)

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
        flow = self._flow(given)
        if given is not None and flow.over and not given.flags & RST:
            return [Leaving(now_s, reset_of_sender(given), True)] if flow.over == "reset" else []
        is_frame = given is None or given.data_bytes > 0
        due = self._due(given, flow, clock_s) if is_frame else []
        if flow.hole:
            return []
        return self._do(due, given, packet, flow, now_s)

    def _flow(self, given: Segment | None) -> _Flow:
        key = given.ports if given is not None else b""
        if given is not None and given.flags & SYN:
            self._flows.pop(key, None)  # the ports may have been another connection's
        return self._flows.setdefault(key, _Flow())

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
                    packet = with_flipped_bit(given, self._bit(one, flow))
                case "truncate" if given is not None:
                    packet, flow.over = cut_short(given, given.data_bytes // 2), "truncate"
                case "reset" if given is not None:
                    packet, flow.over = reset_of_receiver(given), "reset"
                    more.append(Leaving(now_s, reset_of_sender(given), True))
        self._free_at_s = at_s
        return [Leaving(at_s, packet)] * copies + more

    def _bit(self, one: _OnWire, flow: _Flow) -> int:
        place = (self._seed, self.sender, self.receiver, one.number, flow.frames)
        return random.Random(str(place)).randrange(8)

    # -- words -------------------------------------------------------------------------------------

    def _tell_frame(self, one: _OnWire, flow: _Flow) -> None:
        self._tell(one, f"frame {max(flow.frames - 1, 0)}")

    def _tell(self, one: _OnWire, of: str) -> None:
        where = f"{one.what} of {of} from rank {self.sender} to rank {self.receiver}"
        self._happened(one.number, where)


def _pairs(fault: Fault) -> set[tuple[int, int]]:
    """Senders and receivers that a fault is about; empty for one that is not of links."""
    arguments = fault.arguments
    found = {(sender, receiver) for sender, receiver in arguments.get("pairs", ())}
    sides = arguments.get("sides", ())
    for one in sides:
        for other in sides:
            if one is not other:
                found |= {(sender, receiver) for sender in one for receiver in other}
    return found

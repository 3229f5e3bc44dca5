"""What a rank of a simulation has done so far, and what its threads stand in."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from ..record.layout import Activity
from ..record.snapshot import Call, CallSite, Creation, GroupKey, Note
from .meetings import End, MeetingPlace
from .program import CutOff, Ended, Made, Program, Waited


@dataclass(slots=True)
class Membership:
    """A group as one rank is in it. `ready`: it has made it; `kinds`: see `simulation`."""

    place: MeetingPlace
    at: int
    backend: str
    ready: bool = True
    destroyed: bool = False
    issued: int = 0
    chain: int = 0
    exact: int = 0
    last: int | None = None
    kinds: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ChannelCount:
    """The sends, or receives, of a rank in one channel."""

    issued: int = 0
    chain: int = 0
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """What a thread stands still in. `number`: of the call, as the rank has made them."""

    activity: Activity
    since_ns: int
    number: int | None = None
    site: CallSite | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class Standing:
    """One rank. What is known of each call is in lists of equal length, by its number."""

    def __init__(self, program: Program, start_ns: int) -> None:
        self.program = program
        self.start_ns = start_ns
        self.groups: dict[GroupKey, Membership] = {}
        self.channels: dict[tuple[GroupKey, str, int, int], ChannelCount] = {}
        self.calls: list[Call] = []
        self.seqs = array("q")
        self.issued_ns = array("q")
        self.ends: list[End | int] = []
        """When each was over: a time, or what is waited for."""
        self.by_number: dict[int, int] = {}
        """Of the calls whose number in the program is another one."""
        self.creations: list[Creation] = []
        self.notes: list[Note] = []
        self.exit: Ended | None = None
        self.ended_ns = 0
        self.cut: CutOff | None = None
        self.posted = False
        """It has made messages that might still be open when it ends."""
        self.lost = lost_sends(program)
        self.site: CallSite | None = None
        """The line of the last thing that it did."""

    def own_number(self, number: int) -> int | None:
        """The place in the lists of the call that has this number in the program."""
        found = self.by_number.get(number, number)
        if found < len(self.calls) and self.calls[found].number == number:
            return found
        return None

    def done_ns(self, number: int) -> int:
        """When the call was over; 0: it is under way."""
        end = self.ends[number]
        return end if isinstance(end, int) else end.done_ns


def lost_sends(program: Program) -> frozenset[int]:
    """The numbers of sends that the rank never waits for, when nothing that it does afterwards
    involves their receivers: it ends, and nobody knows whether they have left by then."""
    waited = {event.number for event in program.events if isinstance(event, Waited)}
    met: set[int] = set()
    lost = []
    for event in reversed(program.events):
        if not isinstance(event, Made):
            continue
        call = event.call
        peer = call.signature.peer
        if call.signature.op == "send" and call.is_async and call.number not in waited:
            if peer not in met:
                lost.append(call.number)
            continue
        group = program.groups.get(call.group)
        met.update([peer] if peer is not None else group.ranks if group is not None else ())
        if group is not None and len(met) >= program.world_size:
            break
    return frozenset(lost)

"""Connections that misbehave on purpose: a socket that delays, throttles, drops, truncates,
duplicates, corrupts, resets or holds back what is sent on it, as a plan says (`fault_plan`).

It stands where a transport gets its connections (`FaultyLinks.connect` around the `connect` of a
`Mesh` or the `dial` of a `Mailbox`, `FaultyLinks.accept` around its `accept`), knows nothing of
calls, and sees only this rank's sending side. `inject` puts a plan on the connections of the groups
that this process makes from then on. Without a plan nothing of it is in use.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import DeadlineExceeded
from ..limits import CALL_PAUSE_S, REST_PAUSE_S
from .base import Connect
from .fault_plan import Fault, FaultClock, FaultPlan, Injection, Kind
from .frames import DATA, HEADER, IN_MEMORY
from .late_socket import FOREVER, LateSocket, send_before_the_end
from .parcels import BODY, BUFFERED, EAGER, OFFER

Accept = Callable[[int, socket.socket], bool]
"""(peer, connected socket) -> whether it is taken."""

_COUNTED = (DATA, EAGER, BUFFERED, OFFER, BODY)
_now = time.monotonic


@dataclass(eq=False)
class FaultyLinks:
    """The connections of one rank of a group, with the plan's faults on what this rank sends.

    `ranks`: by group rank, the ranks that the plan speaks of; `rank`: this one's group rank.
    `clock`: that of the plan's times; None: one that begins now. `check` is called while a
    connection is held up, and raises when the group is over.
    """

    plan: FaultPlan
    _ranks: Sequence[int]
    _rank: int
    group: str = ""
    clock: FaultClock = field(default_factory=lambda: FaultClock(_now()))
    check: Callable[[], None] = lambda: None

    def connect(self, connect: Connect, lane: int = 0) -> Connect:
        """`connect`, or a mailbox's `dial`, with the faults. Connections that the plan does not
        mention are given as they are. In a black hole it waits, and may raise DeadlineExceeded."""

        def connect_to(peer: int, deadline: float) -> socket.socket:
            self._wait_for_way(peer, lane, deadline)
            return self._faulty(peer, connect(peer, deadline), lane)

        return connect_to

    def accept(self, accept: Accept, lane: int = 0) -> Accept:
        """A mailbox's `accept`: what is answered on a peer's connection is held back as well."""

        def take(peer: int, connection: socket.socket) -> bool:
            return accept(peer, self._faulty(peer, connection, lane))

        return take

    def _faulty(self, peer: int, connection: socket.socket, lane: int) -> socket.socket:
        me, other = self._ranks[self._rank], self._ranks[peer]
        if not self.plan.concerns(me, other, lane):
            return connection
        return FaultySocket(connection, self, me, other, lane)

    def _wait_for_way(self, peer: int, lane: int, deadline: float) -> None:
        """A connection takes packets both ways."""
        me, other = self._ranks[self._rank], self._ranks[peer]
        reported: list[Fault] = []
        while True:
            clock_s = self.clock.now_s
            inward = self.plan.holes(other, me, lane, clock_s)
            outward = self.plan.holes(me, other, lane, clock_s)
            if not (inward or outward):
                return
            for fault in outward:
                if not any(fault is one for one in reported):
                    reported.append(fault)
                    self.tell(Injection(fault, me, other, lane, None, self.group))
            self.check()
            if _now() >= deadline:
                name = f"group {self.group!a}: " if self.group else ""
                raise DeadlineExceeded(
                    f"{name}rank {other} did not answer before the call's deadline",
                    link=(other, me),
                )
            time.sleep(min(REST_PAUSE_S, max(0.0, deadline - _now())))

    def tell(self, injection: Injection) -> None:
        """Tells the plan that this injection happens now."""
        if self.plan.happened is not None:
            self.plan.happened(injection)


class FaultySocket(LateSocket):
    """Takes the place (and the descriptor) of a connected socket. `send` and `sendmsg` go through
    the plan; `sendall`, and `sendmsg` with descriptors, which no frame is sent by, do not."""

    def __init__(
        self, connection: socket.socket, links: FaultyLinks, rank: int, peer: int, lane: int
    ) -> None:
        super().__init__(connection)
        self._links = links
        self._place = (rank, peer, lane)
        of_all = list(enumerate(links.plan.faults))
        mine = [(index, fault) for index, fault in of_all if fault.concerns(*self._place)]
        self._of_frames = [one for one in mine if not one[1].is_timed_hole]
        self._timed_holes = [fault for _index, fault in mine if fault.is_timed_hole]
        self._hits: Counter[int] = Counter()  # by the fault's place in the plan
        self._hole: Fault | None = None  # of frames: nothing goes out until one is not concerned
        self._told_holes: set[int] = set()
        self._frame = 0
        self._head = bytearray()
        self._left = 0
        self._kept: bytearray | None = None  # the frame so far, where all of it is needed
        self._faults: list[Fault] = []
        self._keep_bytes: int | None = None  # of a truncated frame: what is still to be sent
        self._rate: float | None = None
        self._over = False  # nothing is sent any more

    # -- what the transport calls ------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0) -> int:  # noqa: ARG002 - the socket's signature
        return self._take([data])

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), *rest: Any) -> int:
        if ancdata:
            return super().sendmsg(buffers, ancdata, *rest)
        return self._take(buffers)

    # -- frames ------------------------------------------------------------------------------------

    def _take(self, buffers: Iterable[Any]) -> int:
        if self.broken is not None:
            raise self.broken
        if self.is_full:
            time.sleep(CALL_PAUSE_S)  # the caller's poll says "writable": keep it from spinning
            raise BlockingIOError
        taken = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            taken += len(view)
            self._parse(view)
        return taken

    def _parse(self, view: memoryview) -> None:
        while len(view):
            if not self._left:
                missing = HEADER.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) < HEADER.size:
                    return
                head, self._head = bytes(self._head), bytearray()
                self._begin(head)
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            self._emit(part)
            if not self._left:
                self._end()

    def _begin(self, head: bytes) -> None:
        _magic, kind, flags, text_bytes, *_rest, length = HEADER.unpack(head)
        self._left = text_bytes + (0 if flags & IN_MEMORY and kind == DATA else length)
        self._faults, self._rate = [], None
        if kind in _COUNTED:
            self._faults = self._due(has_payload=self._left > text_bytes)
            self._frame += 1
            self._open_or_close_hole()
        whole = False
        for fault in self._faults:
            match fault.kind:
                case Kind.RESET:
                    self._tell(fault)
                    self._reset()
                case Kind.DELAY:
                    assert fault.delay_s is not None
                    self.free_at = max(self.free_at, _now() + fault.delay_s)
                    self._tell(fault)
                case Kind.THROTTLE:
                    self._rate = fault.bytes_per_s
                    self._tell(fault)
                case Kind.TRUNCATE:
                    self._keep_bytes = fault.keep_bytes
                    self._tell(fault)
                case Kind.BLACKHOLE:
                    pass
                case _:
                    whole = True
        self._kept = bytearray() if whole else None
        self._text_bytes = text_bytes
        self._emit(memoryview(head))

    def _due(self, has_payload: bool) -> list[Fault]:
        """Returns the faults of the frame that begins."""
        clock_s = self._links.clock.now_s
        due = []
        for index, fault in self._of_frames:
            if fault.kind is Kind.CORRUPT and not has_payload:
                continue
            if not fault.covers(self._frame, clock_s, self._hits[index]):
                continue
            dice = self._links.plan.dice(*self._place, self._frame, index)
            if dice.random() < fault.probability:
                self._hits[index] += 1
                due.append(fault)
        return due

    def _open_or_close_hole(self) -> None:
        holes = [fault for fault in self._faults if fault.kind is Kind.BLACKHOLE]
        with self.changed:
            self._hole = holes[0] if holes else None
            self.changed.notify()
        for fault in holes:
            self._tell_of_hole(fault)

    def _emit(self, part: memoryview) -> None:
        """The next part of the current frame."""
        if self._kept is not None:
            self._kept += part
        else:
            self._pass(part)

    def _end(self) -> None:
        """The current frame is whole."""
        frame, self._kept = self._kept, None
        times = 1
        for fault in self._faults if frame is not None else ():
            match fault.kind:
                case Kind.DROP:
                    times = 0
                case Kind.DUPLICATE:
                    times *= 2
                case Kind.CORRUPT:
                    assert frame is not None
                    begin = HEADER.size + self._text_bytes
                    dice = self._links.plan.dice(*self._place, self._frame, "bit")
                    bit = dice.randrange(8 * (len(frame) - begin))
                    frame[begin + bit // 8] ^= 1 << bit % 8
                case _:
                    continue
            self._tell(fault)
        if frame is not None:
            for _ in range(times):
                self._pass(memoryview(bytes(frame)))
        if self._keep_bytes is not None:  # of a frame that was shorter than that
            self._keep_bytes = None
            self._finish_sending()

    def _tell(self, fault: Fault) -> None:
        self._links.tell(Injection(fault, *self._place, self._frame - 1, self._links.group))

    def _tell_of_hole(self, fault: Fault) -> None:
        if id(fault) not in self._told_holes:  # the links hold the plan: no id is used again
            self._told_holes.add(id(fault))
            number = self._frame - 1 if self._frame else 0
            self._links.tell(Injection(fault, *self._place, number, self._links.group))

    # -- bytes -------------------------------------------------------------------------------------

    def _pass(self, data: memoryview) -> None:
        """Send this now, or after what waits already."""
        if self._over:
            return
        if self._keep_bytes is not None:
            data = data[: self._keep_bytes]
            self._keep_bytes -= len(data)
        if self._timed_holes:
            clock_s = self._links.clock.now_s
            for fault in self._timed_holes:
                if fault.is_on(clock_s):
                    self._tell_of_hole(fault)
        self.put(data, self._rate)
        if self._keep_bytes == 0:
            self._keep_bytes = None
            self._finish_sending()

    def held_until(self) -> float:
        if self._hole is not None:
            return FOREVER
        if not self._timed_holes:
            return 0.0
        clock = self._links.clock
        clock_s = clock.now_s
        ends = [fault.ends_s for fault in self._timed_holes if fault.is_on(clock_s)]
        return clock.began + max(ends) if ends else 0.0

    def _finish_sending(self) -> None:
        """Nothing comes behind what was sent so far but the end."""
        self._over = True
        self.put_end()

    def _reset(self) -> None:
        """End the connection at once, for both sides, whatever is on its way."""
        error = ConnectionResetError(104, "Connection reset by an injected fault")
        self.broken, self._over = error, True
        self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Whoever polls the descriptor keeps it, and finds it at its end.
        dead, other = socket.socketpair()
        other.close()
        with self.changed, dead:
            self.drop_late()
            os.dup2(dead.fileno(), self.fileno(), inheritable=False)
        raise error


_plan: FaultPlan | None = None
_clock = FaultClock()


def inject(plan: FaultPlan | None) -> None:
    """The plan's faults happen to the connections of all groups made from now on; None: none do.

    Every process must be given the same plan before it makes a group: the group of which a pair is
    concerned is connected by TCP whatever DISTCORE_TRANSPORT says, with its data on the wire, not
    in shared memory, and with a checksum for every frame, so that what is corrupted is found. The
    plan's ranks are global ranks; its clock begins when the first of those groups is connected.
    """
    global _plan, _clock
    _plan, _clock = plan, FaultClock()


def links(
    ranks: Sequence[int], rank: int, group: str, aside: bool, check: Callable[[], None]
) -> FaultyLinks | None:
    """The faults for a group that is being made; None where it has none. The same answer on all
    its ranks. See `tcp.engine.connect` for the arguments, and `FaultyLinks` for `check`."""
    plan = _plan
    if plan is None:
        return None
    if aside:
        plan = replace(plan, faults=tuple(one for one in plan.faults if one.is_timed_hole))
    if not plan.concerns_group(ranks):
        return None
    send_before_the_end()
    return FaultyLinks(plan, ranks, rank, group, _clock, check)


def connected(aside: bool) -> None:
    """A group is there."""
    if not aside:
        _clock.begin()

"""Tables of states and events say who may lead, who is lost, and what a member does about it;
and the clocks that they go by: how far apart those of two ends are, and for how long one listened.

Pure: no socket, and no clock but what is passed in. Times of the other end are seconds for which we
have listened, so that a supervisor that is behind takes nobody for lost. An event that a row does
not name changes nothing.

The offset of another host's monotonic clock from this one's is found as NTP does it: a message with
our time goes there and comes back with theirs. The truth is within half of the round trip around
the middle; so the quickest of the last exchanges counts.

Silence is counted only while we listened. Whoever is behind hears of nobody: what was said lies in
a queue that is not read yet, or was never asked for since our pings are late. A process that the
system has not run for some seconds, or that reads as fast as it can and never comes to the end of
its queue, may therefore not take anybody for lost. So a clock runs here only while the queue is
read to its end, and a stretch in which we were not there counts for a moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

from . import limits
from .limits import MISSED_S, QUEUE_EVERY_S

REMEMBERED = 16
"""Exchanges; at two a second that is eight seconds, in which clocks drift apart by less than 1 us
for each part in a million that they differ."""


@dataclass(slots=True)
class Offset:
    """`add_ns` to their clock gives ours; the truth is within `error_ns` of it. The first exchange
    is taken as it is; later ones change the offset only where they know it better, or where it has
    drifted out of what they allow: times that were corrected before stay comparable."""

    add_ns: int = 0
    error_ns: int = -1
    _last: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def known(self) -> bool:
        """Whether there was an exchange."""
        return self.error_ns >= 0

    def exchanged(self, sent_ns: int, theirs_ns: int, received_ns: int) -> bool:
        """Take in one exchange; True where the offset has changed."""
        trip_ns = received_ns - sent_ns
        if trip_ns < 0:
            return False
        add_ns, error_ns = (sent_ns + received_ns) // 2 - theirs_ns, trip_ns // 2
        self._last.append((error_ns, add_ns))
        error_ns, add_ns = min(self._last)
        outside = abs(add_ns - self.add_ns) > error_ns + max(self.error_ns, 0)
        if self.known and not outside and error_ns >= self.error_ns // 2:
            return False
        self.add_ns, self.error_ns = add_ns, error_ns
        return True


@dataclass(slots=True)
class Listening:
    """The time that we have listened, in all."""

    total_s: float = 0.0
    absent_s: float = 0.0
    """The last time that we were not there for longer than a moment; it ended at `absent_at_s`."""
    absent_at_s: float = 0.0
    _last_s: float = -1.0

    def looked(self, now_s: float, to_the_end: bool) -> None:
        """Notes that the queue was looked at now, and whether it was read to its end."""
        if to_the_end and self._last_s >= 0:
            self.total_s += min(max(0.0, now_s - self._last_s), QUEUE_EVERY_S)
        if self._last_s >= 0 and now_s - self._last_s > MISSED_S:
            self.absent_s, self.absent_at_s = now_s - self._last_s, self.total_s
        self._last_s = now_s


class Event(Enum):
    """Whatever can happen to a supervisor, to the other end of its link, or to a connection."""

    # to a supervisor
    MEET = auto()  # it is told, by the job's store or by its flags, that there are others
    FAIL = auto()  # it cannot listen there, or knows no way
    LEAD = auto()
    JOIN = auto()
    ORPHAN = auto()  # it has lost its head
    # to the other end
    SPEAK = auto()
    BE_LATE = auto()
    BE_SILENT = auto()
    BE_MISSED = auto()  # it was silent for so long that no interruption explains it
    BE_GIVEN_UP = auto()  # it was missed, and that was acted upon
    LEAVE = auto()
    REFUSE = auto()
    # to a connection
    CONNECT = auto()
    PROVE = auto()  # both ends have proved their keys
    CLOSE = auto()
    EXPIRE = auto()


class Role(Enum):
    """A supervisor's part in its job."""

    ALONE = "alone"
    MEETING = "meeting"
    APART = "apart"
    HEAD = "head"
    MEMBER = "member"
    ORPHAN = "orphan"


ROLES: Mapping[Role, Mapping[Event, Role]] = {
    Role.ALONE: {Event.MEET: Role.MEETING},
    Role.MEETING: {Event.LEAD: Role.HEAD, Event.JOIN: Role.MEMBER, Event.FAIL: Role.APART},
    Role.APART: {},
    Role.HEAD: {},
    Role.MEMBER: {Event.ORPHAN: Role.ORPHAN},
    Role.ORPHAN: {},
}
"""A head stays one, and who has lost its head gets no other: two heads would be two verdicts."""


class Standing(Enum):
    """The other end, as this one hears it."""

    AWAITED = auto()
    HEARD = auto()
    LATE = auto()
    SILENT = auto()
    MISSED = auto()
    LOST = auto()
    LEFT = auto()
    REFUSED = auto()


_THERE: Mapping[Event, Standing] = {
    Event.SPEAK: Standing.HEARD,
    Event.BE_LATE: Standing.LATE,
    Event.BE_SILENT: Standing.SILENT,
    Event.BE_MISSED: Standing.MISSED,
    Event.LEAVE: Standing.LEFT,
    Event.REFUSE: Standing.REFUSED,
}
STANDINGS: Mapping[Standing, Mapping[Event, Standing]] = {
    Standing.AWAITED: {**_THERE, Event.BE_MISSED: Standing.LOST},
    Standing.HEARD: _THERE,
    Standing.LATE: _THERE,
    Standing.SILENT: _THERE,
    # Who is missed and speaks before that was acted upon is there.
    Standing.MISSED: {**_THERE, Event.BE_GIVEN_UP: Standing.LOST},
    Standing.LOST: {},
    Standing.LEFT: {},
    Standing.REFUSED: {},
}


class LineState(Enum):
    """A connection to the head."""

    DIALLED = auto()
    PROVING = auto()
    PROVED = auto()
    EXPIRED = auto()


_DIALLED: Mapping[Event, LineState] = {
    Event.CONNECT: LineState.PROVING,
    Event.PROVE: LineState.PROVED,
}
LINES: Mapping[LineState, Mapping[Event, LineState]] = {
    LineState.DIALLED: {**_DIALLED, Event.EXPIRE: LineState.EXPIRED},
    LineState.EXPIRED: _DIALLED,
    LineState.PROVING: {Event.PROVE: LineState.PROVED, Event.CLOSE: LineState.DIALLED},
    LineState.PROVED: {Event.CONNECT: LineState.PROVING, Event.CLOSE: LineState.DIALLED},
}


class Way(Enum):
    """The choice of a member between the connection that it has and a second one."""

    DIAL = auto()
    MOVE = auto()
    DROP = auto()


WAYS: Mapping[tuple[LineState | None, Standing], Way] = {
    (None, Standing.LATE): Way.DIAL,
    (None, Standing.SILENT): Way.DIAL,
    (None, Standing.MISSED): Way.DIAL,
    (LineState.PROVED, Standing.SILENT): Way.MOVE,
    (LineState.PROVED, Standing.MISSED): Way.MOVE,
    (LineState.PROVED, Standing.HEARD): Way.DROP,
    # Not while keys are proved: the head would count it as an attempt without one.
    (LineState.EXPIRED, Standing.HEARD): Way.DROP,
}
"""What to do, by the state of the second connection (None: there is none) and the head's. A
connection is not left before the head is silent, since it may have spoken again by then: who broke
with it at once would be missed after an interruption that loses nobody."""

State = TypeVar("State", Role, Standing, LineState)


def after(table: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    """Returns the state that follows."""
    return table[state].get(event, state)


@dataclass(slots=True)
class Peer:
    """The other end of a link. A head knows one for each node, a node one: its head."""

    standing: Standing = Standing.AWAITED
    last_s: float = -1.0
    """When it was heard last; before it ever was, -1."""
    unheard_s: float = 0.0
    """For how long it has heard nothing of us, by its own word."""
    _asked_s: float = -1.0
    moved_s: float = -1e9

    def on(self, event: Event) -> None:
        """Takes an event."""
        self.standing = after(STANDINGS, self.standing, event)

    def spoke(self, listened_s: float) -> None:
        """Notes that it has said something."""
        self.last_s, self._asked_s = listened_s, -1.0
        self.on(Event.SPEAK)

    def asked(self, listened_s: float) -> None:
        """Notes that it was told something that it answers."""
        if self._asked_s < 0:
            self._asked_s = listened_s

    def silent_s(self, listened_s: float) -> float:
        """Returns for how long it has said nothing; before it has ever spoken, 0."""
        return listened_s - self.last_s if self.last_s >= 0 else 0.0

    def look(self, listened_s: float, every_s: float | None = None) -> Standing:
        """Returns how it stands now. `every_s`: between two questions to it, of one that speaks
        when it is asked. It is missed only if it was asked early enough: one of three questions
        would have come through."""
        silent_s = self.silent_s(listened_s)
        stuck_s = max(silent_s, self.unheard_s)
        if stuck_s <= limits.LATE_S:
            return self.standing
        in_time = every_s is None or (
            self._asked_s >= 0 and listened_s - self._asked_s >= limits.LOST_AFTER_S - 3 * every_s
        )
        if silent_s > limits.LOST_AFTER_S and in_time:
            self.on(Event.BE_MISSED)
        else:
            self.on(Event.BE_SILENT if stuck_s > limits.SILENT_S else Event.BE_LATE)
        return self.standing

    def way(self, second: LineState | None, listened_s: float) -> Way | None:
        """Returns what a member does about its connections; None: nothing. Where it has moved a
        moment ago, the head is about to speak."""
        way = WAYS.get((second, self.standing))
        return None if way is Way.DIAL and listened_s - self.moved_s < limits.LATE_S else way

    def moved(self, listened_s: float) -> None:
        """Notes that a member speaks by another connection now."""
        self.unheard_s, self.moved_s = 0.0, listened_s

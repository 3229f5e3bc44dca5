"""A `Finding` is the record of one fault; `record.kinds` says what is known of its kind."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..record.kinds import KINDS, Kind
from ..record.snapshot import CallSite, Group
from ..record.wording import RankState, printable


class CallIs(str, Enum):
    """The call of a rank's evidence is one of these to its state."""

    LAST = "last"
    """The last call before: `finished, last call all_reduce(...)`."""
    OBJECT = "object"
    """The state is about this call: `waits in all_reduce(...)`."""
    ALL = "all"
    """All that is to be said: `called #3` needs no words where the call is printed."""

    @classmethod
    def in_report(cls, evidence: Mapping[str, Any]) -> CallIs:
        """Reads it from a report.json; in one that is older than the field, the state tells it."""
        with contextlib.suppress(ValueError):
            return cls(str(evidence.get("call_is")))
        state = str(evidence.get("state"))
        if state.startswith(("called #", "sends", "receives")):
            return cls.ALL
        return cls.OBJECT if state in (RankState.WAITS_IN, RankState.STOPPED_IN) else cls.LAST


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """A rank's evidence says what it was doing, and where. `call` is a printed signature, `state` a
    phrase in words. `location` is where it waits for the handle, or has left; `called_at` is where
    it made the call, if that is another line. `thread` names the thread that is in it, if that is
    not the main one."""

    state: str
    call: str | None = None
    location: CallSite | None = None
    stack: Sequence[str] = ()
    call_is: CallIs = CallIs.LAST
    called_at: CallSite | None = None
    thread: str = ""


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """The group that a finding is about. `ranks` are global ranks in group order."""

    name: str
    desc: str
    ranks: tuple[int, ...]


def group_evidence(group: Group) -> GroupEvidence:
    """The evidence for this group."""
    return GroupEvidence(
        name=printable(group.key[0], 120), desc=printable(group.desc, 120), ranks=group.ranks
    )


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a deadlock's cycle: a rank `in all_reduce(...) #3 of group "a"` waits for another.
    `detail` is the line of the finding's details that says the same, with the place."""

    rank: int
    doing: str
    waits_for: int
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding tells of one cause. `culprits` are the ranks to look at first, in the order that
    matters for the kind (a deadlock's cycle); `victims` everybody else in it; `missing` ranks that
    never came.

    `observable_ns` is when the last of the events that prove it happened (Unix nanoseconds).
    `message` is one sentence without newlines. `details` are further lines for the text report
    (a unified diff, the cycle, the calls that agreed), each one printable line. `headline` is the
    message without the calls of each rank, for where a table of them follows ("": the message as
    it is), `difference` what one rank did differently, where that could be told; `cycle` tells a
    deadlock's, in order. `story` names the rule that made it, and then what has changed it since
    (see `story`).

    From a foreign record: `side` is "host" (the call was never issued) or "device" (issued, and
    never completed); `not_in_record` names what of a call that kind of record does not hold.
    """

    kind: str
    message: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    severity: str = "error"
    proven: bool = True
    cause: str | None = None
    group: GroupEvidence | None = None
    seq: int | None = None
    ranks: Mapping[int, RankEvidence] = field(default_factory=dict)
    details: Sequence[str] = ()
    headline: str = ""
    difference: str = ""
    cycle: tuple[Step, ...] = ()
    observable_ns: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    side: str | None = None
    not_in_record: tuple[str, ...] = ()
    story: tuple[str, ...] = field(default=(), compare=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for the same finding seen in two snapshots."""
        group = self.group.name if self.group else None
        return (self.kind, tuple(sorted(self.culprits)), group, self.seq, self.severity)

    @property
    def about(self) -> Kind:
        """All that is known of its kind."""
        return KINDS[self.kind]

    @property
    def exit_code(self) -> int:
        return self.about.exit_code

    def __repr__(self) -> str:
        where = f" #{self.seq} of {self.group.name}" if self.group and self.seq is not None else ""
        return f"<{self.severity} {self.kind}{where}: culprits {list(self.culprits)}>"

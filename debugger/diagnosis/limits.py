"""The caller sets `Limits`; a `Candidate` is a finding that may still wait for more evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..record.limits import MOST_S

if TYPE_CHECKING:
    from ..record.dispute import Vote
    from .findings import Finding

SECOND_NS = 1_000_000_000
TOGETHER_NS = SECOND_NS // 4
"""What happens to several ranks of one cause, a signal or the same mistake, happens within this; so
does the polite signal that the launcher sends to the others once it has seen a failure."""
ON_CORE_NS = SECOND_NS // 2
"""Nobody waits much longer than this for the processor: ranks that poll are told so much later, and
one that has run its last line of Python is through with its teardown."""
MOMENT_NS = SECOND_NS
"""A rank that came so shortly before the time was up may have been too late; a connection that
broke with the process that held it is seen to so much later; a wait that is older than this, at the
last sign of life, is one of a rank that did not move any more."""
AFTERMATH_NS = 2 * SECOND_NS
"""What follows from an event, on a busy machine, does within this: the peers' failures, which may
be seen first; the other ranks' end of the same backward; the bytes that an ended process has
sent."""
ANOTHER_NS = 5 * SECOND_NS
"""So long a program has time to start another thread in place of one that died."""
APART_NS = 5 * SECOND_NS
"""Records that were written so far apart are not of one moment."""
UNKNOWN_NS = 6 * SECOND_NS
"""Ranks are told of as they load torch, which takes seconds; then nobody but those of the lost node
is left."""
FAILING_NS = 10 * SECOND_NS
"""So long a test runner may take from a test that failed to the end of its process."""
MOST_READ = 200_000
"""Calls that are read at the end of a run, of all ranks together: so that the largest run takes
about a second."""
ROUNDING = 1e-6
"""Of the largest element: eight units in the last place of a float32 at 1, where norms begin."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits say how long to wait before something is reported.

    `hang_timeout_s`: from then on a late rank is suspected. `notice_after_s`: from then on a
    notice names it. `settle_s`: how long evidence that others could still change is held back;
    `undecided_s`: the same of ranks that disagree without a majority, for each of them is named
    then, and a rank that has not come yet may have had no core meanwhile; `agreeing_s`: the same
    where ranks wait before the backend until all have come, and then report who is wrong.
    `heartbeat_s`: how often a rank's heartbeat runs. `clock_from_ns`: waits are not counted from
    earlier than this (Unix time; set it when a pause at a breakpoint has ended). `compares`: what
    ranks call is compared; at debug level OFF it is not, and a hang of ranks that disagree is
    reported as a hang. `failed`: the command has ended with a failure, and how ranks ended will
    not become known any more.
    """

    hang_timeout_s: float = 60.0
    notice_after_s: float = 10.0
    settle_s: float = 0.5
    undecided_s: float = 2.0
    agreeing_s: float = 4.0
    heartbeat_s: float = 0.1
    clock_from_ns: int = 0
    compares: bool = True
    failed: bool = False

    @classmethod
    def of_run(cls, run: Mapping[str, Any]) -> Limits:
        """Returns the limits that the run.json of a run names."""
        timeout_s = run.get("hang_timeout_s")
        if isinstance(timeout_s, int | float) and 0 < timeout_s < MOST_S:  # else: damaged
            return cls(hang_timeout_s=float(timeout_s))
        return cls()

    @property
    def settle_ns(self) -> int:
        return int(self.settle_s * SECOND_NS)

    def hold_ns(self, result: Vote[Any], agreeing: bool = False) -> int:
        """For how long what so many ranks say is held back, for others may join them. `agreeing`:
        they enter the backend only when all have come."""
        if not result.open:
            return 0
        if result.majority is not None:
            return self.settle_ns
        return int((self.agreeing_s if agreeing else self.undecided_s) * SECOND_NS)

    @property
    def hang_ns(self) -> int:
        return int(self.hang_timeout_s * SECOND_NS)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A finding before consequences are folded.

    `ready_ns`: not reported before that moment, because evidence that is still to come may
    change it; it folds others all the same. `weakness`: 0 for a cause of its own; 1 for an end
    that another rank's failure may have brought (SIGABRT, SIGTERM); 2 for what a rank says when
    *another* has failed (a connection closed by the peer). A stronger one near in time wins.
    `excused`: it explains what follows from it, and is nobody's fault: it is never reported.
    `refused`: the ranks compared the call before they made it, and none did, so that they stand
    where they stood. `agreed_ns`: when its culprits last made a call of its group alike before it.
    `apart`: its rule has seen to it that it is no consequence of another fault.
    """

    finding: Finding
    ready_ns: int = 0
    weakness: int = 0
    excused: bool = False
    refused: bool = False
    agreed_ns: int = 0
    apart: bool = False


SLOW_BYTES_PER_S = 100e6
"""At this rate the bytes of a call may come before it counts as one that waits for others."""
SLOWEST_BYTES_PER_S = 1e6
"""What a call's bytes may take, once for each rank, before a call that all are in counts as stuck:
a slow network is no fault."""

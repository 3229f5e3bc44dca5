"""The states of a rank, or of one of its threads, are one type, whose values are the words in which
messages, reports and the app say it.

The finder (the diagnosis from a record, the supervisor from a stack) hands on the member, and the
printer prints the member: no code has to read it back from a text.
"""

from __future__ import annotations

from enum import Enum


class RankState(str, Enum):
    """A member is a text as well: a report has it as it is, and what is read back equals it."""

    UNSEEN = "never seen"
    RUNS = "runs user code"
    """It waits for nobody, as far as is known."""
    WAITS_IN = "waits in"
    STOPPED_IN = "stopped in"
    FAILED_IN = "failed in"
    RAISED = "raised"
    AT_BREAKPOINT = "at a breakpoint"
    STOPPED = "stopped by a signal"
    WAITS_FOR_STORE = "waits for a store key"
    WAITS_FOR_LOCK = "waits for a lock"
    """For a lock, a condition, a queue or another thread of its process."""
    HOLDS_GIL = "something holds its GIL"
    FINISHED = "finished"

    def __str__(self) -> str:
        return str(self.value)


CAUSES = {
    "stopped": RankState.STOPPED,
    "store": RankState.WAITS_FOR_STORE,
    "gil_held": RankState.HOLDS_GIL,
    "lock": RankState.WAITS_FOR_LOCK,
}
"""What a rank does that has not come, by the cause of a `missing_rank`."""

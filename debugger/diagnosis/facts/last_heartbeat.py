"""A run that was killed together with its supervisor, as it was at its last sign of life.

That all of its ranks were killed in the end is no finding: who lived until then counts as alive.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from ...record.exits import POLITE_SIGNALS, ExitLog, ExitStatus
from ...record.layout import Phase
from ...record.snapshot import Process, Rank, Snapshot
from ..limits import MOMENT_NS, SECOND_NS

_END_SIGNALS = POLITE_SIGNALS | {signal.SIGKILL}


def as_it_was(snapshot: Snapshot, exits: ExitLog) -> Snapshot:
    """The snapshot at the last sign of life, with those alive that only the end killed."""
    last_ns = max(map(_last_sign_ns, snapshot.ranks.values()), default=snapshot.taken_ns)
    ranks = {
        number: replace(
            rank, process=_process(rank, exits.find(rank.pid, rank.started_ns), last_ns)
        )
        for number, rank in snapshot.ranks.items()
    }
    return replace(snapshot, taken_ns=last_ns, ranks=ranks, over=True)


def _process(rank: Rank, status: ExitStatus | None, last_ns: int) -> Process:
    if status is not None:
        # Deaths by a signal so shortly before the last sign of life belong to the end of the run.
        late = not status.time_ns or status.time_ns > last_ns - SECOND_NS * 3 // 2
        if not (late and status.signal in _END_SIGNALS):
            return Process(
                alive=False,
                exit_code=status.code,
                signal=status.signal,
                ended_ns=status.time_ns or rank.process.ended_ns,
            )
    if rank.phase is Phase.ENDED:
        return rank.process
    return Process(alive=True, state="S")


def _last_sign_ns(rank: Rank) -> int:
    waits = (wait.since_ns for wait in rank.waits)
    return max(rank.heartbeat_ns, rank.started_ns, rank.process.ended_ns or 0, *waits)


def standing_still(snapshot: Snapshot) -> Snapshot:
    """Returns the part of the snapshot that an earlier one would have had alike: the ranks that had
    not moved for a while."""
    ranks = {
        number: replace(rank)
        for number, rank in snapshot.ranks.items()
        if rank.waits and all(snapshot.taken_ns - w.since_ns >= MOMENT_NS for w in rank.waits)
    }
    return replace(snapshot, ranks=ranks)

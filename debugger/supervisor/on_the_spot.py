"""The report of a run that has none: it still runs, or was killed together with its supervisor, or
never had one (`distdebug.install`).

A live run is looked at twice, so that ranks which do not move are known. A killed run is judged
as of its last sign of life: that all of its ranks were killed in the end is no finding.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..diagnosis.diagnose import verdict_first
from ..diagnosis.facts.last_heartbeat import as_it_was, standing_still
from ..diagnosis.facts.world import exit_status
from ..diagnosis.judging import judge, warnings_at_the_end
from ..diagnosis.limits import Limits
from ..faults.injected import FaultWatch
from ..record.exits import ExitLog
from ..record.reading.records import Records, newest_ranks, unreadable_ranks
from ..record.requests.supervision import is_live
from ..record.runs.run_directory import RunDirectory, read_object
from ..record.safe_files import whole_or_none
from ..record.snapshot import Rank, Snapshot
from ..reports import document, injections
from ..reports.stored import Document
from .guarded_watch import OwnFaults
from .machine.processes import ProcessTable
from .watch import LocalReader

EXIT_KILLED = 128 + signal.SIGKILL
EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class Look:
    """The worlds of a run, as they are now and as they were before. `faults` are sentences about
    flight records that cannot be read."""

    now: Sequence[Snapshot]
    before: Sequence[Snapshot]
    faults: Sequence[str]

    @property
    def ranks(self) -> dict[int, Rank]:
        """The newest record of each rank, the newest world first."""
        return newest_ranks(self.now)


def report(directory: RunDirectory) -> tuple[Document, Sequence[str]]:
    """The report document of the run as it stands, and sentences about unreadable records.

    The outcome is the kind of the verdict; without one "running" for a live run, and "interrupted"
    for one that was killed. One that nobody supervised ends as its ranks do.
    """
    run = read_object(directory.run_json)
    limits = Limits.of_run(run)
    supervised = run.get("supervised") is not False
    live = is_live(directory.path)
    if live or not supervised:
        look = look_live(directory)
    else:
        look = look_killed(directory)
    if not supervised:
        look = _newest_world(look)
        live = any(rank.process.alive for rank in look.ranks.values())
        if not live:
            look = replace(look, now=[replace(one, finished=True) for one in look.now])
    own_faults = OwnFaults()
    judged = judge(look.now, look.before, limits, own_faults.note)
    found = judged.verdict
    findings = verdict_first(judged.findings)
    if found is None:
        findings += warnings_at_the_end(look.now)
    elif live:
        from .machine import listeners  # which needs psutil

        # Who listens at the address of a finding is known only as long as the run lives.
        findings = list(map(listeners.with_listener, findings))
    outcome, code = _outcome(look, live, supervised)
    if found is not None:
        outcome, code = found.kind, found.exit_code
    notes = list(look.faults)
    if not live and supervised:
        notes.append("the run was killed before it could report; this is how its records ended")
    command = run.get("command")
    ended_ns = max((snapshot.taken_ns for snapshot in look.now), default=0)
    started_ns = whole_or_none(run.get("started_ns"))
    made = document.build(
        command=[str(word) for word in command] if isinstance(command, list) else [],
        run_dir=directory.path,
        world_size=max((snapshot.world_size for snapshot in look.now), default=0),
        duration_s=max(0, ended_ns - started_ns) / 1e9 if ended_ns and started_ns else 0.0,
        outcome=outcome,
        exit_code=code,
        findings=[(finding, None) for finding in findings],
        ranks=look.ranks,
        notes=notes,
        unreadable=unreadable_ranks(look.now),
    )
    made["off"] = [*made["off"], *own_faults.off]
    faults = FaultWatch(directory.path)
    faults.look()
    if faults.plan is not None:
        pairs = [(finding, None) for finding in findings]
        injections.add(made, pairs, faults.plan, faults.entries, look.ranks)
    return made, look.faults


def _outcome(look: Look, live: bool, supervised: bool) -> tuple[str, int]:
    """Returns the outcome and the exit code, where nothing was found."""
    if live:
        return "running", 0
    if supervised:
        return "interrupted", EXIT_KILLED
    failed = any(exit_status(rank) for rank in look.ranks.values())
    return ("failed", EXIT_FAILED) if failed else ("ok", 0)


def _newest_world(look: Look) -> Look:
    """Programs that were started one after the other may have kept their records in one place."""
    started = [max(rank.started_ns for rank in world.ranks.values()) for world in look.now]
    if len(started) < 2:
        return look
    newest = started.index(max(started))
    return replace(look, now=look.now[newest : newest + 1], before=look.before[newest : newest + 1])


def look_live(directory: RunDirectory) -> Look:
    """A run whose processes can be looked at."""
    steady = is_live(directory.path)  # else it may have been before the host was booted
    records = Records(directory.ranks, steady=steady, trusted=steady)
    reader = LocalReader(records, ProcessTable(ExitLog(directory.exits, steady)))
    before = reader.look()
    time.sleep(0.4)  # what both looks show is not only on its way
    return Look(reader.look(), before, reader.faults)


def look_killed(directory: RunDirectory) -> Look:
    """A run of which nothing is left but its records."""
    exits = ExitLog(directory.exits)
    exits.poll()
    records = Records(directory.ranks)
    records.look()
    snapshots = [as_it_was(snapshot, exits) for snapshot in records.snapshots(finished=False)]
    before = [standing_still(snapshot) for snapshot in snapshots]
    return Look(snapshots, before, tuple(records.faults.values()))

"""Watches a run: one look at all ranks, one diagnosis, again and again, until something is found.

A finding is held back until a second look confirms it, since evidence of an earlier cause may
arrive a moment later than the evidence of its consequence. What it looks at is a `LocalReader`: the
flight records below one run directory, and the processes of this host. Where there are other nodes,
`several_nodes.JobReader` is one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..diagnosis.diagnose import OnFault, verdict
from ..diagnosis.findings import Finding
from ..diagnosis.judging import Judge, judge
from ..diagnosis.limits import Limits
from ..diagnosis.notices import Notice
from ..diagnosis.story import step
from ..record import steady_clock
from ..record.log_file import INFO, OFF
from ..record.reading.records import Records
from ..record.snapshot import Snapshot
from .limits import (
    ANSWERS_S,
    CONFIRM_AFTER_S,
    MOMENT_S,
    PROCESSES_EVERY_S,
    RECORDS_EVERY_S,
    SETTLING_S,
    STILL_EVERY_S,
)
from .machine.processes import ProcessTable

REST, CONFIRM_REST = 2.0, 0.25
"""The pause after a look is at least so many times what looks take of the processor."""
USUAL_OF = 5
"""The number of last looks of which that is the mean: all together they take no more of the
processor, and one that takes long, since much has happened, is not followed by a pause as long in
which a fault would wait for the next one."""
CALLING_REST, CALLING_EVERY_S = 25.0, 32.0
"""While ranks of many nodes go on calling and nothing else is reported, the last look holds for so
many times what looks take, and no longer than this; what is asked meanwhile is whether there is
more."""
CALM_REST, CALM_EVERY_S = 100.0, 96.0
"""The same of a look that came after such a time, and saw nobody wait for long: no clock runs that
could bring a finding."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a run: what is reported, and how gravely.

    `level` is the debug level: at OFF mismatches are not looked for. `max_restarts`: the launcher
    restarts ranks that fail, so a failure before the last attempt does not end the run; below
    `exec` the ranks say so, from what their launcher has put into their environment.
    """

    limits: Limits = field(default_factory=Limits)
    level: str = INFO
    max_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The findings of one look. `verdict` is set once it is confirmed."""

    snapshots: Sequence[Snapshot]
    findings: Sequence[Finding]
    notices: Sequence[Notice]
    verdict: Finding | None


class Watch:
    """Remembers what earlier looks saw, and what of it is confirmed."""

    def __init__(
        self, reader: LocalReader, policy: Policy, on_fault: OnFault | None = None
    ) -> None:
        """A rule that raises is reported to `on_fault` and costs only itself; where that is None,
        it raises."""
        self._reader = reader
        self._policy = policy
        limits = replace(policy.limits, compares=policy.level != OFF)
        self._judge = Judge(limits, on_fault)
        self._candidate: tuple[tuple[object, ...], float] | None = None
        self._mark: tuple[object, ...] = ()
        self._last_s = 0.0
        self._look: Look = Look((), (), (), None)
        self._start_asked_s = 0.0
        self._starting = False
        self._costs_s: deque[float] = deque(maxlen=USUAL_OF)
        self._used_s = 0.0
        self._looked_s = self._news_s = self._asked_s = 0.0
        self._stirred_s = time.monotonic()
        self._rested_s = self._spare_s = 0.0
        self._held = self._calm = False
        self.detected_after_s: dict[tuple[object, ...], float] = {}

    def pause(self) -> None:
        """Counts no wait from earlier than now: a rank is at a breakpoint."""
        limits = self._judge.limits
        self._judge.limits = replace(limits, clock_from_ns=steady_clock.now_ns())

    def fail(self) -> None:
        """The command has failed, and no more will be known of how ranks ended than is now."""
        self._judge.limits = replace(self._judge.limits, failed=True)
        self._mark = ()

    def suspects(self) -> Sequence[Finding]:
        """Returns what the last look would have suspected if the hang timeout were over as soon as
        a notice names who is late. They are warnings: by the limits of this run nothing is
        wrong."""
        limits = self._judge.limits
        limits = replace(limits, hang_timeout_s=min(limits.hang_timeout_s, limits.notice_after_s))
        snapshots, known = self._look.snapshots, {one.identity for one in self._look.findings}
        return [
            replace(one, severity="warning")
            for one in judge(snapshots, (), limits).findings
            if not one.proven and one.identity not in known
        ]

    @property
    def pause_s(self) -> float:
        """The seconds to wait until the next look: of many ranks one takes long, and beside looking
        there is to be time for all else, such as hearing what other nodes say."""
        usual_s = self._usual_s
        if self._candidate is not None:
            return max(CONFIRM_AFTER_S, CONFIRM_REST * usual_s)
        if self._held:
            return RECORDS_EVERY_S if self._news_s else STILL_EVERY_S
        return max(RECORDS_EVERY_S, self._rest_s)

    @property
    def _rest_s(self) -> float:
        """The rest of the pause after a look. A look that came late, since the last one held, had
        more than that before it: what happens now is not to wait for it."""
        return max(0.0, REST * self._usual_s - self._spare_s)

    @property
    def _usual_s(self) -> float:
        return sum(self._costs_s) / max(1, len(self._costs_s))

    def look(self, finished: bool = False) -> Look:
        """Look at all ranks now, or give the last look where that holds. `finished`: no process of
        the run is left."""
        held, self._held = self._held, not finished and self._holds()
        if self._held:
            self._used_s = time.thread_time()
            return self._look
        # To take in what comes between two looks is a part of what they cost.
        began_s = self._used_s if self._costs_s else time.thread_time()
        begins_s = time.monotonic()
        rested = self._reader.only_calling()
        if not rested:
            self._stirred_s = self._news_s or begins_s
        self._spare_s = max(0.0, begins_s - self._rested_s - self._rest_s) if held else 0.0
        try:
            look = self._judged(finished)
            self._calm = held and rested and not self._somebody_waits(look)
            return look
        finally:
            self._used_s, self._rested_s = time.thread_time(), time.monotonic()
            self._costs_s.append(self._used_s - began_s)

    def _holds(self) -> bool:
        """Whether the last look is as good as one now. Where it has held for a while and there is
        more to be seen, a moment passes: what ranks have in common is reported by many nodes
        then."""
        if self._candidate is not None or not self._costs_s:
            return False
        now_s, usual_s = time.monotonic(), self._usual_s
        if self._news_s:
            return now_s - self._news_s < min(usual_s, MOMENT_S) and not self._reader.all_told()
        hold_s = min(CALLING_EVERY_S, CALLING_REST * usual_s)
        if self._calm:  # the last look is what the next one will be
            hold_s = max(hold_s, min(CALM_EVERY_S, CALM_REST * self._costs_s[-1]))
        settling_s = max(SETTLING_S, self._looked_s - self._stirred_s)
        if settling_s < hold_s and now_s - self._looked_s >= settling_s:
            return False
        if now_s - self._looked_s >= hold_s:
            if not self._asked_s and self._reader.ask():
                self._asked_s = now_s
            if not self._asked_s or now_s - self._asked_s >= ANSWERS_S:
                return False
        if self._reader.only_calling():
            return True
        rests = self._held or (self._spare_s > 0 and not self._rest_s)
        if rests:
            self._news_s = now_s
        return rests and usual_s > RECORDS_EVERY_S

    def _somebody_waits(self, look: Look) -> bool:
        """Whether a rank waits for so long that it is to be said before long. Ranks that call wait
        a moment each time, and one that has just come to stand still does not wait for longer,
        yet."""
        return any(
            one.taken_ns - wait.since_ns > self._judge.limits.notice_after_s * 1e9
            for one in look.snapshots
            for rank in one.ranks.values()
            for wait in rank.waits
        )

    def _judged(self, finished: bool) -> Look:
        snapshots = self._reader.look(finished)
        now_s = self._looked_s = time.monotonic()
        self._news_s = self._asked_s = 0.0
        mark = (self._reader.change_mark, _process_mark(snapshots), finished)
        if mark == self._mark and self._candidate is None and now_s - self._last_s < STILL_EVERY_S:
            return self._look
        self._mark, self._last_s = mark, now_s
        judged = self._judge.look(snapshots)
        findings = [
            self._graded(one, snapshot)
            for snapshot, diagnosis in judged.worlds
            for one in diagnosis.findings
        ]
        for one in findings:
            self.note_time(one)
        confirmed = self._confirmed(findings, now_s, finished)
        self._look = Look(snapshots, findings, judged.notices, confirmed)
        return self._look

    def only_look(self) -> Look:
        """Looks at all ranks now, and judges nothing: another supervisor does, or they have just
        ended. To judge 16,384 takes more memory than all that is known of them."""
        self._look = Look(self._reader.look(False), (), (), None)
        return self._look

    def _confirmed(
        self, findings: Sequence[Finding], now_s: float, finished: bool
    ) -> Finding | None:
        found = verdict(findings)
        if found is None or (not finished and self._may_still_come(found)):
            self._candidate = None
            return None
        if finished:
            return found
        if self._candidate is None or self._candidate[0] != found.identity:
            self._candidate = (found.identity, now_s)
        first_s = self._candidate[1]
        # What is far away may not be reported yet, and be the cause. It is asked for with the first
        # look already, so that the second one may have seen it.
        settled = self._reader.settled(first_s, found)
        return found if settled and now_s - first_s >= CONFIRM_AFTER_S else None

    def _may_still_come(self, found: Finding) -> bool:
        """Ranks are missed of which nothing was seen, while processes are still starting up. Asked
        at most every `PROCESSES_EVERY_S`: a process at work has used some time in between."""
        if found.kind != "join_timeout" or found.proven or not found.missing:
            return False
        now_s = time.monotonic()
        if now_s - self._start_asked_s >= PROCESSES_EVERY_S:
            self._start_asked_s = now_s
            self._starting = self._reader.starting()
        return self._starting

    def note_time(self, finding: Finding) -> None:
        """Notes when the finding was found: just now."""
        if finding.identity not in self.detected_after_s:
            after_s = (
                (steady_clock.now_ns() - finding.observable_ns) / 1e9
                if finding.observable_ns
                else 0
            )
            self.detected_after_s[finding.identity] = max(0.0, after_s)

    @step("restart")
    def _graded(self, finding: Finding, snapshot: Snapshot) -> Finding:
        """A failure that the launcher answers with a restart is only a warning. On several nodes
        launchers restart one after the other, and so do ranks that meet nobody meanwhile."""
        restarted = finding.about.restarted or (
            finding.kind in ("join_timeout", "stalled")
            and not finding.proven
            and any(one.node for one in snapshot.ranks.values())
        )
        if not restarted or finding.severity != "error":
            return finding
        culprits = [snapshot.ranks[rank] for rank in finding.culprits if rank in snapshot.ranks]
        attempts = [one.restart_count for one in culprits]
        most = max([self._policy.max_restarts, *(one.max_restarts for one in culprits)])
        if attempts and max(attempts) < most:
            return replace(finding, severity="warning")
        return finding


def _process_mark(snapshots: Sequence[Snapshot]) -> tuple[object, ...]:
    return tuple(
        (
            rank.process.alive,
            rank.process.state in ("T", "t"),
            rank.process.exit_code,
            rank.process.signal,
        )
        for snapshot in snapshots
        for rank in snapshot.ranks.values()
    )


def without_deaths_by(look: Look, signal: int) -> Look:
    """The same for a run that was asked to end by this signal: who dies of it has done nothing."""
    return replace(
        look,
        findings=[
            one
            for one in look.findings
            if not (one.kind == "rank_died" and one.data.get("signal") == signal)
        ],
    )


class LocalReader:
    """The reader of one run directory. `world_size` overrides what the ranks say (0: unknown, as on
    one node of several)."""

    def __init__(
        self, records: Records, table: ProcessTable, world_size: int | None = None
    ) -> None:
        self._records = records
        self._table = table
        self._world_size = world_size
        self.trust_size = False
        """True where the size of the world counts that the ranks say, whatever `world_size` is."""

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        """Returns all ranks as they are now: one snapshot for each world, the oldest first.
        `finished`: no process of the run is left."""
        self._table.refresh()
        self._records.look()
        size = None if self.trust_size else self._world_size
        return self._records.snapshots(self._table.observe, size, finished=finished)

    def only_calling(self) -> bool:
        """Whether all that was reported since the last look is that ranks of other nodes go on
        calling, and nothing has happened here. False where that is not known, or a look costs
        little."""
        return False

    def ask(self) -> bool:
        """Have all be told anew that is told now and then only, before a look that others follow
        late. False where nothing is: the look can be made at once."""
        return False

    def all_told(self) -> bool:
        """Whether all have told how their ranks are since the first one reported more than that
        these go on calling. False where that is not known."""
        return False

    def here(self) -> tuple[object, ...]:
        """Returns a value that is equal as long as each rank of this host goes on calling, or
        stands still, as before."""
        self._table.refresh()
        return self._records.here(self._table.observe)

    @property
    def change_mark(self) -> tuple[object, ...]:
        """A value that is equal as long as nothing has happened in any rank, as of the last
        look."""
        return self._records.change_mark

    def starting(self) -> bool:
        """Whether a process that may become a rank, and has no record yet, was at work since the
        last call."""
        return self._table.starting(self._records.pids)

    def settled(self, since_s: float, about: Finding) -> bool:
        """Whether the last look has shown all that had happened by then, of the monotonic clock,
        that bears on this finding."""
        del about
        return since_s <= time.monotonic()

    @property
    def faults(self) -> Sequence[str]:
        """Sentences about flight records that cannot be read."""
        return tuple(self._records.faults.values())

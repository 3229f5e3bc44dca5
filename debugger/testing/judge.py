"""Judges the ranks of a test from outside, as `distdebug run` does: the same records, diagnosis,
stacks and report."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..diagnosis.diagnose import verdict
from ..diagnosis.findings import Finding
from ..diagnosis.judging import judge
from ..diagnosis.limits import Limits
from ..record.exits import ExitLog
from ..record.layout import Activity
from ..record.reading.records import Records, newest_ranks
from ..record.runs.run_directory import RunDirectory
from ..record.snapshot import Process, Rank
from ..reports import document, text
from ..supervisor.limits import STACKS_S
from ..supervisor.machine.processes import ProcessTable
from ..supervisor.stacks import stack_tree
from ..supervisor.stacks.evidence import Evidence, gather
from ..supervisor.watch import LocalReader, Look, Policy, Watch
from ..system.memory import OomWatch
from .limits import LATE_S
from .marks import Wanted


class BodyTable(ProcessTable):
    """The ranks' processes, of which those whose body has ended count as ended: such a rank comes
    to no call any more that others wait in, although its process waits for them."""

    def __init__(self, exits: ExitLog) -> None:
        super().__init__(exits, None, OomWatch())
        self._bodies: dict[int, Process] = {}

    def body_ended(self, pid: int, code: int) -> None:
        """Notes that the body has ended, until `go_on`."""
        self._bodies[pid] = Process(alive=False, exit_code=code, ended_ns=time.time_ns())

    def go_on(self) -> None:
        """The fixtures are torn down: they may communicate."""
        self._bodies.clear()

    def observe(self, pid: int, start_ticks: int = 0) -> Process:
        return self._bodies.get(pid) or super().observe(pid, start_ticks)


class BodyJudge:
    """The judge of one test. `finding` is what ended it, or was found in it; None so far."""

    def __init__(self, directory: RunDirectory, exits: ExitLog, wanted: Wanted, level: str) -> None:
        self._directory = directory
        self._wanted = wanted
        self._exits = exits
        self._began_s = time.monotonic()
        self._limits = Limits(hang_timeout_s=wanted.hang_timeout_s or 1e6)
        self._evidence = Evidence()
        self._waiting: dict[int, int] = {}
        self._look = Look((), (), (), None)
        self._previous = self._look
        self.table = BodyTable(exits)
        self._watch = Watch(
            LocalReader(Records(directory.ranks, trusted=True), self.table, wanted.nproc),
            Policy(limits=self._limits, level=level),
        )
        self.finding: Finding | None = None

    @property
    def pause_s(self) -> float:
        """The seconds to wait until the next look."""
        return self._watch.pause_s

    @property
    def ranks(self) -> dict[int, Rank]:
        return newest_ranks(self._look.snapshots)

    def pause(self) -> None:
        """Holds the clock: a rank is at a breakpoint, and no rank is late meanwhile."""
        self._watch.pause()

    def look(self) -> Finding | None:
        """Look at all ranks; the error that was found, and confirmed."""
        self._previous, self._look = self._look, self._watch.look()
        return self._allowed(self._look.verdict)

    def last_look(self) -> Finding | None:
        """All ranks are through with the body: whatever the records show is true."""
        self.look()
        allowed = [one for one in self._look.findings if one.kind not in self._wanted.ignore]
        found = verdict(allowed)
        if found is None and self._wanted.strict:
            return next(iter(allowed), None)  # there are warnings alone
        if found is not None and found.kind == "rank_exception":
            return None  # the traceback says it, and more
        return found

    def _allowed(self, found: Finding | None) -> Finding | None:
        return None if found is None or found.kind in self._wanted.ignore else found

    def all_wait(self, numbers: Collection[int]) -> bool:
        """Whether all of these ranks have been in one wait since the last call of this."""
        ranks = self.ranks
        before, self._waiting = self._waiting, {}
        for number in numbers:
            rank = ranks.get(number)
            if rank is not None and any(one.activity is not Activity.NONE for one in rank.waits):
                self._waiting[number] = rank.layer_serial
        return all(
            number in before and before[number] == self._waiting.get(number) for number in numbers
        )

    # -- ending the test -----------------------------------------------------------------------

    def late(self) -> Finding | None:
        """At the test's timeout: who is late, however little."""
        limits = Limits(hang_timeout_s=LATE_S, settle_s=0.0)
        return self._allowed(judge(self._look.snapshots, self._previous.snapshots, limits).verdict)

    def gather(self) -> str:
        """Take the stacks of the ranks that are alive; all of them as one tree."""
        self._evidence = gather(self._directory, self.ranks, False, STACKS_S)
        return stack_tree.render(self._evidence.stacks)

    def stop(self, finding: Finding) -> None:
        """Every rank that can still run Python raises the finding; its words are kept."""
        self.finding = self._evidence.refine(finding)
        self.raise_in_ranks(finding.kind, self.finding.message, finding.cause)

    def raise_in_ranks(self, kind: str, message: str, cause: str | None = None) -> None:
        """Have every rank that can raise this raise it; the first time counts."""
        if not self._directory.verdict.exists():
            self._directory.raise_in_ranks(kind, message, cause)

    # -- what is left of it --------------------------------------------------------------------

    def report(self, nodeid: str, outcome: str) -> str:
        """Write the report of the run; its text."""
        finding = self.finding
        others = [
            one
            for one in self._look.findings
            if finding is None or one.identity != finding.identity
        ]
        if finding is not None and finding.severity == "error":
            others = [one for one in others if one.severity == "error"]
        findings = [*([finding] if finding is not None else ()), *others]
        made = document.build(
            command=["pytest", nodeid],
            run_dir=self._directory.path,
            world_size=self._wanted.nproc,
            duration_s=time.monotonic() - self._began_s,
            outcome=finding.kind if finding is not None else outcome,
            exit_code=finding.exit_code if finding is not None else int(outcome != "ok"),
            findings=[(one, self._watch.detected_after_s.get(one.identity)) for one in findings],
            ranks=self.ranks,
            stacks=self._evidence.lines,
        )
        words = text.render(made)
        self._directory.write_json(self._directory.report_json.name, made)
        self._directory.write_text(self._directory.report_text.name, words)
        return words

    def write_run(self, nodeid: str) -> None:
        """Writes what made this directory, for `distdebug report` and `distdebug tui`."""
        about: dict[str, Any] = {"command": ["pytest", nodeid], "started_ns": time.time_ns()}
        self._directory.write_json(self._directory.run_json.name, about)


def make_directory(path: Path) -> RunDirectory:
    """The run directory of a test; no `latest` points to it."""
    return RunDirectory.create(path.parent / "none", path)

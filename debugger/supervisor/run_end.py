"""Brings a run to its end: what was found is raised in the ranks, and what is left ends.

What is looked at along the way (stacks, how the ranks ended, who died without a record) belongs to
the report.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from ..diagnosis.findings import Finding
from ..record.limits import POLL_EVERY_S
from ..record.reading.records import newest_ranks
from ..system.memory import OomWatch
from .command.interrupts import Interrupts
from .command.launch import Launch, can_raise
from .command.reach import Reach, early_death
from .guarded_watch import GuardedWatch
from .limits import END_GRACE_S, INTERRUPTED_S, LEFT_GRACE_S, RAISE_GRACE_S, STACKS_S
from .machine import listeners
from .own_faults import OwnFaults
from .run_options import Options
from .several_nodes import JobRanks
from .stacks.evidence import Evidence
from .watch import Look


@dataclass(slots=True)
class RunEnd:
    """The end of one run. `evidence` is what was gathered on the way."""

    options: Options
    launch: Launch
    ranks: JobRanks
    watch: GuardedWatch
    interrupts: Interrupts
    faults: OwnFaults
    reach: Reach
    say: Callable[[str], None]
    oom: OomWatch
    evidence: Evidence = field(default_factory=Evidence)

    def end(self, look: Look, finding: Finding | None) -> tuple[Look, Finding | None]:
        """Bring the run to its end; the look that counts, and the verdict."""
        ranks = newest_ranks(look.snapshots)
        if self.interrupts.signal is not None:
            with self.faults.guard("the stacks"):
                self.evidence = self.ranks.stacks(ranks, False, INTERRUPTED_S)
            if look.notices:
                with self.faults.guard("the suspects at the interrupt"):
                    suspects = [self.evidence.refine(one) for one in self.watch.suspects()]
                    look = replace(look, findings=[*suspects, *look.findings])
            self._forward(self.interrupts.signal)
            return look, None
        if finding is None:
            return self._end_without_finding(look)
        with self.faults.guard("rule early_death"):
            finding = self._early_death(finding, ranks) or finding
        with self.faults.guard("the stacks"):
            self.evidence = self.ranks.stacks(ranks, self.options.native_stacks, STACKS_S)
            finding = self.evidence.refine(finding)
        with self.faults.guard("the exception in the ranks"):
            self._raise_in_ranks(finding)
        self.ranks.end(END_GRACE_S, self._quiet)
        return look, finding

    def _early_death(self, found: Finding | None, recorded: Collection[int]) -> Finding | None:
        status = self.launch.poll()
        orphaned = status is not None and status.signal == signal.SIGKILL
        exits = self.launch.exits
        return early_death(found, self.reach, recorded, exits, self.oom.killed, orphaned)

    @property
    def _quiet(self) -> bool:
        """Whether the launcher is ended first, and unasked: torchrun has ranks on this host only,
        and prints tracebacks about the ranks it loses."""
        return self.options.launcher == "torchrun"

    def _forward(self, number: int) -> None:
        """The signal goes to the command, which gets the time to end that it would have without us:
        after SIGTERM a checkpoint is written that torchrun would have waited for."""
        interrupts = self.interrupts
        self.say(
            f"{interrupts.name} is handed on to the command, which may take "
            f"{interrupts.grace_s:.0f} s to end; Ctrl-C ends it at once"
        )
        self.ranks.forward(number, interrupts.grace_s, lambda: interrupts.at_once)
        self.ranks.end(0 if interrupts.at_once else LEFT_GRACE_S)

    def _end_without_finding(self, look: Look) -> tuple[Look, Finding | None]:
        """The command has ended, or it is ended since a fault cannot be made. What it left behind
        is ended, but for a daemon that it started and that nobody would miss here."""
        launch = self.launch
        status = launch.poll()
        left = self.ranks.left()
        if status is not None:
            # All of them may have ended since the last look, the one that failed among them.
            look = self.watch.observe() or look
        ranks = newest_ranks(look.snapshots)
        if status is None or any(rank.process.alive for rank in ranks.values()):
            # How the ranks end from here on is our doing; what was found before stands.
            if status is not None and status.shell_code and look.verdict is None:
                look = self._look_once_failed(look, finished=False)
            self.ranks.end(END_GRACE_S, self._quiet)
            return look, look.verdict if status is not None else None
        if left:
            pids = [rank.pid for rank in ranks.values()]
            spared = launch.daemons(pids) if status.shell_code == 0 else []
            launch.spare(spared)
            self.ranks.end(END_GRACE_S, self._quiet, spared)
        look = self.watch.observe(finished=True) or look
        found = look.verdict
        if status.shell_code:
            with self.faults.guard("rule early_death"):
                ranks = newest_ranks(look.snapshots)
                found = self._early_death(found, ranks)
        if found is None and status.shell_code:
            look = self._look_once_failed(look, finished=True)
            found = look.verdict
        if found is not None:
            with self.faults.guard("who listens at an address"):
                found = listeners.with_listener(found)
        return look, found

    def _look_once_failed(self, look: Look, finished: bool) -> Look:
        """The last look; where it finds nothing, what ranks caught before they ended with a status
        that nobody saw may be what the command failed of."""
        self.watch.fail()
        look = self.watch.observe(finished) or look
        if not finished and look.findings:
            time.sleep(self.watch.pause_s)
            look = self.watch.observe() or look  # which confirms it
        return look

    def _raise_in_ranks(self, finding: Finding) -> None:
        """Every rank that can still run Python raises the finding; wait until they have ended."""
        if not self.ranks.tell(finding):
            return
        deadline = time.monotonic() + RAISE_GRACE_S
        while self.ranks.left() and time.monotonic() < deadline and self.interrupts.signal is None:
            look = self.watch.only_look()
            if not any(can_raise(rank) for rank in newest_ranks(look.snapshots).values()):
                return
            time.sleep(POLL_EVERY_S)

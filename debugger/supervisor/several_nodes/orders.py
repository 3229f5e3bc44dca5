"""The orders to a supervisor by the job that its run is a part of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ...diagnosis.findings import Finding
from ...diagnosis.rules.node_lost import lost_without_ranks
from ...node_links.limits import LOCAL_VERDICT_S
from ...record.exits import ExitStatus
from ...record.snapshot import Rank
from ...reports.stored import Document
from ..command.interrupts import Interrupts
from .incomplete import Incomplete
from .job import Job
from .late_meeting import LateMeeting
from .ranks import JobRanks


class Orders:
    """The orders to one run. `over`: it is to end, with `finding` if there is one."""

    def __init__(
        self,
        job: Job,
        ranks: JobRanks,
        interrupts: Interrupts,
        say: Callable[[str], None],
        late: LateMeeting,
        incomplete: Incomplete | None = None,
    ) -> None:
        """`incomplete`: of a job that may wait for nodes before it has ranks."""
        self._job = job
        self._late = late
        self._incomplete = incomplete
        self._ranks = ranks
        self._interrupts = interrupts
        self._say = say
        self._lost_s = 0.0
        self._abandoned: ExitStatus | None = None
        self.finding: Finding | None = None
        self.over = False

    def look(self, ranks: Mapping[int, Rank]) -> bool:
        """Do what is asked; whether the run is over. `ranks`: as of the last look."""
        head, member = self._job.head, self._job.member
        if head is not None and head.interrupted is not None and self._interrupts.signal is None:
            number, who = head.interrupted
            self._interrupts.signal = number
            self._say(f"{self._interrupts.name} came to {who}: all nodes end")
        if head is not None and head.abandoned is not None and not self.over:
            self._abandoned, who = head.abandoned
            self._say(f"the command on {who} ended with {self._abandoned}: all nodes end")
            self.over = True
        if member is None:
            found = self._incomplete.look(ranks) if self._incomplete is not None else None
            if found is not None:
                self.finding, self.over = found, True
            return self.over
        if member.lost:
            return self._without_head(ranks)
        if member.stacks_wanted is not None:
            self._ranks.answer(ranks)
        if member.finding is not None or member.document is not None:
            self.finding, self.over = member.finding, True
        elif member.stop_signal and self._interrupts.signal is None:
            self._interrupts.signal = member.stop_signal
            self._say(f"{self._interrupts.name} came to another node: all nodes end")
        elif member.ends:
            self.over = True  # there is no finding, and yet it is over: a fault cannot be made
        return self.over

    def _without_head(self, ranks: Mapping[int, Rank]) -> bool:
        """A head that was there and is silent ends the run here; what is seen here comes first."""
        member = self._job.member
        if member is None or not member.welcomed:
            return False  # there never was one: this node is judged by itself
        self._lost_s = self._lost_s or time.monotonic()
        if time.monotonic() - self._lost_s > LOCAL_VERDICT_S:
            lost = member.lost_node(ranks)
            self.finding, self.over = lost_without_ranks(lost), True
        return self.over

    def may_end(self, status: ExitStatus | None, ended: bool, ranks: Mapping[int, Rank]) -> bool:
        """The command has ended, and `ended`: nothing of the run is left here, or nobody waits for
        it. Whether that is so on all nodes, or the job is over for them, too: a command that has
        failed has left ranks behind, which nobody would end."""
        head, member = self._job.head, self._job.member
        left = bool(
            status is not None
            and status.shell_code
            and any(rank.process.alive for rank in ranks.values() if not rank.node)
        )
        if left and status is not None and status.signal is not None:
            ended = True  # it had no chance to end them
        if not ended:
            return False
        if head is not None:
            return left or head.all_over
        if member is not None and not member.lost:
            member.tell_end(status, not left)
            return False  # the head says when
        failed = status is not None and bool(status.shell_code)
        return not (failed and self._late.goes_on(ranks))

    def status(self, own: ExitStatus | None) -> ExitStatus | None:
        """Returns how the command ended, on the node where it ended worst."""
        head = self._job.head
        if self._abandoned is not None:
            return self._abandoned  # ours was ended for it
        if head is None or (own is not None and own.shell_code):
            return own
        return head.worst or own

    def document(self, status: ExitStatus | None) -> Document | None:
        """The head's report, if this node has a head that gives one."""
        member = self._job.member
        if member is None or member.lost or not member.welcomed:
            return None
        member.tell_end(status, True)
        grace_s = self._interrupts.grace_s if self._interrupts.signal is not None else 0.0
        return member.report(lambda: self._interrupts.at_once, grace_s)

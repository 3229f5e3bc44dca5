"""The ranks of all nodes, looked into and ended: `run_end.RunRanks` of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ...diagnosis.findings import Finding
from ...node_links.limits import THERE_AND_BACK_S
from ...record.runs.run_directory import RunDirectory
from ...record.snapshot import Rank
from ..limits import ASKED_STACKS_S
from ..run_end import LocalRanks
from ..stacks.evidence import Evidence, keep
from .job import Job
from .questions import nodes_to_look_into
from .stacks import merged


class JobRanks:
    """`local` are those of this node."""

    def __init__(self, local: LocalRanks, job: Job, directory: RunDirectory) -> None:
        self._local = local
        self._job = job
        self._directory = directory
        self._taken: Evidence | None = None
        self._grace_s = 0.0
        self._hasten: Callable[[], bool] = lambda: False

    def stacks(self, ranks: Mapping[int, Rank], native: bool, timeout_s: float) -> Evidence:
        head, began_s = self._job.head, time.monotonic()
        if head is None and self._taken is not None:
            return self._taken  # the head has asked for them already
        if head is not None:
            head.ask_stacks(native, timeout_s, nodes_to_look_into(ranks))
        here = {number: rank for number, rank in ranks.items() if not rank.node}
        evidence = self._local.stacks(here, native, timeout_s)
        if head is not None:
            others = head.stacks(began_s + timeout_s + THERE_AND_BACK_S)
            evidence = merged(evidence, others)
            keep(self._directory, evidence.stacks, (), time.monotonic() - began_s)
        return evidence

    def answer(self, ranks: Mapping[int, Rank]) -> None:
        """The head wants the stacks of the ranks here."""
        member = self._job.member
        if member is None or member.stacks_wanted is None:
            return
        wanted = member.stacks_wanted
        asked_s = wanted.get("timeout_s")
        timeout_s = (
            min(float(asked_s), ASKED_STACKS_S)
            if isinstance(asked_s, int | float)
            else ASKED_STACKS_S
        )
        self._taken = self._local.stacks(ranks, wanted.get("native") is True, timeout_s)
        member.tell_stacks(self._taken)

    def tell(self, finding: Finding) -> bool:
        if self._job.head is not None:
            self._job.head.tell(
                {
                    "kind": finding.kind,
                    "cause": finding.cause,
                    "message": finding.message,
                    "culprits": list(finding.culprits)[:4096],
                }
            )
        return self._local.tell(finding)

    def left(self) -> bool:
        return self._local.left()

    def forward(self, number: int, grace_s: float, hasten: Callable[[], bool]) -> None:
        self._grace_s, self._hasten = grace_s, hasten
        if self._job.head is not None:
            self._job.head.stop(number)
        elif self._job.member is not None:
            self._job.member.interrupted(number)
        self._local.forward(number, grace_s, hasten)

    def end(self, grace_s: float, quiet: bool = False, spared: Collection[int] = ()) -> None:
        self._local.end(grace_s, quiet, spared)
        if self._job.head is not None:
            # The ranks of other nodes may take as long to end as those here.
            self._job.head.end(self._grace_s, self._hasten)

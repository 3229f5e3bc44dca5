"""The app's own diagnosis, next to what the supervisor and the report say; no one cries wolf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..diagnosis import judging
from ..diagnosis.diagnose import OnFault, verdict_first
from ..diagnosis.findings import Finding
from ..diagnosis.limits import Limits
from ..record.kinds import kind_of
from ..record.snapshot import Snapshot
from .picture import Problem
from .text import safe


class LiveJudge:
    """Remembers what earlier looks saw: a finding counts when two looks agree on it."""

    def __init__(self, on_fault: OnFault | None = None) -> None:
        """A rule that raises is told to `on_fault`; the others judge without it."""
        self._judge = judging.Judge(Limits(), on_fault)
        self._seen: set[tuple[object, ...]] = set()

    def look(
        self, snapshots: Sequence[Snapshot], limits: Limits
    ) -> tuple[list[Problem], list[str]]:
        """Returns what is wrong with a live run, seen twice; and notices."""
        self._judge.limits = limits
        judged = self._judge.look(snapshots)
        confirmed = [one for one in judged.findings if one.identity in self._seen]
        self._seen = {one.identity for one in judged.findings}
        return in_order(confirmed), [safe(one.text, 2000) for one in judged.notices]


def judge_once(
    snapshots: Sequence[Snapshot],
    before: Sequence[Snapshot],
    limits: Limits,
    on_fault: OnFault | None = None,
) -> list[Problem]:
    """Returns what is wrong with a run that is over."""
    return in_order(judging.judge(snapshots, before, limits, on_fault).findings)


def in_order(findings: Iterable[Finding]) -> list[Problem]:
    """Returns the findings with the verdict first."""
    return [
        Problem(
            kind=one.kind,
            severity=one.severity,
            message=safe(one.message, 2000),
            culprits=one.culprits,
            proven=one.proven,
            details=tuple(map(safe, one.details)),
        )
        for one in verdict_first(findings)
    ]


def together(
    supervisors: Sequence[Problem], own: Sequence[Problem], supervised: bool
) -> list[Problem]:
    """Joins findings: what a live run's supervisor has said comes first, then what the app may
    add."""
    found = list(supervisors)
    if any(one.is_error for one in supervisors):
        return found  # what comes after the verdict is its consequence
    known = {(one.kind, one.culprits) for one in found}
    for one in own:
        unsure = supervised and (kind_of(one.kind).restarted or not one.proven)
        if not unsure and (one.kind, one.culprits) not in known:
            found.append(one)
    return sorted(found, key=lambda one: not one.is_error)

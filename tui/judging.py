"""The app's own diagnosis, next to what the supervisor and the report say; no one cries wolf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from debugger.diagnosis.diagnose import OnFault, diagnose, verdict_first
from debugger.diagnosis.findings import Finding
from debugger.diagnosis.limits import Limits
from debugger.record.snapshot import Snapshot

from .picture import Found
from .text import safe

_SUPERVISORS = frozenset(
    {"rank_died", "rank_exception", "early_exit", "invalid_argument", "tool_error"}
)
"""A launcher may answer these with a restart, which only the supervisor knows."""


class Judge:
    """Remembers what earlier looks saw: a finding counts when two looks agree on it."""

    def __init__(self, on_fault: OnFault | None = None) -> None:
        """A rule that raises is told to `on_fault`; the others judge without it."""
        self._on_fault = on_fault
        self._previous: dict[tuple[str, int], Snapshot] = {}
        self._seen: set[tuple[object, ...]] = set()

    def look(self, snapshots: Sequence[Snapshot], limits: Limits) -> tuple[list[Found], list[str]]:
        """What is wrong with a live run, seen twice; and notices."""
        found: list[Finding] = []
        notices: list[str] = []
        for snapshot in snapshots:
            if snapshot.ranks:
                key = snapshot.world
                diagnosis = diagnose(snapshot, self._previous.get(key), limits, self._on_fault)
                self._previous[key] = snapshot
                found += diagnosis.findings
                notices += diagnosis.notices
        confirmed = [one for one in found if one.identity in self._seen]
        self._seen = {one.identity for one in found}
        return in_order(confirmed), [safe(one, 2000) for one in notices]


def judge_once(
    snapshots: Sequence[Snapshot],
    before: Sequence[Snapshot],
    limits: Limits,
    on_fault: OnFault | None = None,
) -> list[Found]:
    """What is wrong with a run that is over."""
    pairs = zip(snapshots, before, strict=True)
    judged = [diagnose(now, then, limits, on_fault) for now, then in pairs]
    return in_order([one for diagnosis in judged for one in diagnosis.findings])


def in_order(findings: Iterable[Finding]) -> list[Found]:
    """The verdict first."""
    return [
        Found(
            kind=one.kind,
            severity=one.severity,
            message=safe(one.message, 2000),
            culprits=one.culprits,
            details=tuple(map(safe, one.details)),
        )
        for one in verdict_first(findings)
    ]


def together(supervisors: Sequence[Found], own: Sequence[Found], supervised: bool) -> list[Found]:
    """What a live run's supervisor has said comes first; of the app's own what it may add."""
    found = list(supervisors)
    if any(one.is_error for one in supervisors):
        return found  # what comes after the verdict is its consequence
    known = {(one.kind, one.culprits) for one in found}
    for one in own:
        unsure = supervised and (one.kind in _SUPERVISORS or one.message.startswith("suspected"))
        if not unsure and (one.kind, one.culprits) not in known:
            found.append(one)
    return sorted(found, key=lambda one: not one.is_error)

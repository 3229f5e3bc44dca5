"""When ranks that disagree have last agreed."""

from __future__ import annotations

from dataclasses import replace

from ...record.kinds import Family
from ...record.layout import CallState
from ..findings import Finding
from ..limits import Candidate
from .evidence import call_of
from .world import World

MOST_REFUSED = 64
"""Calls before it that are looked at: those that were refused in a row."""


def with_agreement(world: World, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, each disagreement with the time from which its culprits had all entered the
    last call that they made alike. One error alone has nothing to be told from."""
    if sum(one.finding.severity == "error" for one in candidates) < 2:
        return candidates
    return [
        replace(one, agreed_ns=_agreed_ns(world, one.finding))
        if one.finding.about.family is Family.MISMATCH
        else one
        for one in candidates
    ]


def _agreed_ns(world: World, finding: Finding) -> int:
    """0: never, or not on record."""
    group, seq = finding.group, finding.seq
    if group is None or seq is None or not finding.about.of_signatures:
        return 0
    for number in range(seq - 1, max(-1, seq - 1 - MOST_REFUSED), -1):
        made = (call_of(world, group.name, number, rank) for rank in finding.culprits)
        calls = [call for call in made if call is not None]
        if len(calls) < len(finding.culprits):
            return 0
        if all(call.state is CallState.COMPLETED for call in calls):
            return min(call.issued_ns for call in calls)
    return 0

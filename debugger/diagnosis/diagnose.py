"""From two snapshots to findings: the one entry to the diagnosis.

Pure: no I/O but what `History` reads, no clock but the snapshot's, no state between calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..record.snapshot import Snapshot
from .facts.channels import Channels
from .facts.needs import Needs
from .facts.world import World
from .findings import Finding
from .folding.finally_blocks import explained
from .folding.fold import fold
from .known_faults import cited
from .limits import Candidate, Limits
from .notices import late_notices, recorded
from .rules.collective_mismatch import mismatches
from .rules.ddp_unused_parameters import explained_by_unused, unused_parameters
from .rules.dead_threads import lost_threads, mentioned
from .rules.deadlock import deadlocks
from .rules.deaths_and_exceptions import endings
from .rules.divergence import differing_replicas
from .rules.early_exit import departures
from .rules.group_creation import creation_mismatches
from .rules.join_timeout import joins
from .rules.late_rank import missing_ranks, refine_cause
from .rules.p2p_mismatch import message_mismatches
from .rules.reported_by_ranks import settled, told
from .rules.split_mismatch import split_mismatches
from .rules.stalled_call import stuck
from .rules.unwaited_work import unwaited
from .stalled import stalled
from .store_host import store_hosts_that_left

__all__ = ["Diagnosis", "Limits", "diagnose", "refine_cause", "verdict", "verdict_first"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings with consequences folded, errors first and by time; and one-line notices."""

    findings: tuple[Finding, ...] = ()
    notices: tuple[str, ...] = ()


def diagnose(
    snapshot: Snapshot, previous: Snapshot | None = None, limits: Limits | None = None
) -> Diagnosis:
    """What is wrong in this snapshot.

    `previous` is an earlier snapshot of the same run, taken at any time before: it proves that
    ranks which wait have not moved. Without it no deadlock is proven.
    """
    world = World(snapshot, previous, limits or Limits())
    channels = Channels(world)
    needs = Needs(world, channels)
    own = told(world)
    candidates = [
        *mismatches(world),
        *split_mismatches(world),
        *message_mismatches(world, channels),
        *creation_mismatches(world),
        *joins(world, needs),
        *deadlocks(world, channels, needs),
        *departures(world, channels, needs),
        *store_hosts_that_left(world),
        *endings(world),
        *unused_parameters(world),
        *lost_threads(world, needs),
        *(missing_ranks(world, needs) or stuck(world, needs)),
        *differing_replicas(world),
        *own,
        *(Candidate(finding) for finding in (*recorded(world), *unwaited(world))),
    ]
    if not any(one.finding.severity == "error" and one.weakness < 2 for one in candidates):
        candidates += stalled(world)
    causes = [
        explained(world, explained_by_unused(world, candidate))
        for candidate in settled(candidates, own)
    ]
    ready = _ready(world, fold(causes))
    found = tuple(cited(world, mentioned(world, finding)) for finding in ready)
    return Diagnosis(found, late_notices(world, needs))


def verdict(findings: Iterable[Finding]) -> Finding | None:
    """The first error by time, or None."""
    errors = [finding for finding in findings if finding.severity == "error"]
    return min(errors, key=lambda finding: finding.observable_ns, default=None)


def verdict_first(findings: Iterable[Finding]) -> list[Finding]:
    """The verdict, if there is one, before all others in their order."""
    rows = list(findings)
    first = verdict(rows)
    return rows if first is None else [first, *(one for one in rows if one is not first)]


def _ready(world: World, causes: list[Candidate]) -> tuple[Finding, ...]:
    """What may be said now: behind an error that is held back, later errors wait, too."""
    found = []
    held = False
    for candidate in causes:
        early = candidate.ready_ns > world.now_ns and not world.snapshot.finished
        if candidate.finding.severity == "error":
            held = held or early
            if not held:
                found.append(candidate.finding)
        elif not early:
            found.append(candidate.finding)
    return tuple(found)

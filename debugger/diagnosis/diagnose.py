"""From two snapshots to findings: the one entry to the diagnosis.

Pure: no I/O but what `History` reads, no clock but the snapshot's, no state between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..record.snapshot import Snapshot
from . import story
from .facts.channels import Channels
from .facts.needs import Needs
from .facts.slips import Slips
from .facts.world import World
from .findings import Finding
from .folding import alike, explained, fold, in_doubt, with_agreement
from .limits import Candidate, Limits
from .notices import Notice, late_notices, recorded
from .rules.collective_mismatch import mismatches, split_mismatches, with_other_rows
from .rules.ddp_unused_parameters import explained_by_unused, unused_parameters
from .rules.deadlock import deadlocks
from .rules.deaths_and_exceptions import endings, lost_threads, with_exceptions
from .rules.decision import with_decision
from .rules.divergence import differing_replicas
from .rules.early_exit import departures, expected_elsewhere, store_hosts_that_left
from .rules.group_creation import creation_mismatches, different_splits
from .rules.join_timeout import joins
from .rules.late_rank import missing_ranks
from .rules.misaligned import misaligned, with_parting, without_carried
from .rules.node_lost import lost_nodes
from .rules.p2p_mismatch import message_mismatches
from .rules.paired_otherwise import paired_otherwise
from .rules.reported_by_ranks import reported, unreported, unwaited
from .rules.stalled import stalled, standstills
from .rules.stalled_call import stuck
from .rules.without_clock import (
    all_wait,
    device_stuck,
    left_behind,
    never_issued,
    opposed_order,
    unclear,
    unended,
)

OnFault = Callable[[str, Exception], None]
"""Told which part of the diagnosis failed, and how."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings with consequences folded, errors first and by time; and one-line notices."""

    findings: tuple[Finding, ...] = ()
    notices: tuple[Notice, ...] = ()


def diagnose(
    snapshot: Snapshot,
    previous: Snapshot | None = None,
    limits: Limits | None = None,
    on_fault: OnFault | None = None,
    slips: Slips | None = None,
) -> Diagnosis:
    """Returns what is wrong in this snapshot.

    `previous` is an earlier snapshot of the same run, taken at any time before: it proves that
    ranks which wait have not moved. Without it no deadlock is proven. A rule that raises is
    reported to `on_fault`, and the others judge without it; where that is None, the exception goes
    on. `slips`: what earlier looks found of the same logs of lines.
    """
    guarded = _Guarded(on_fault)
    rule, candidates_of = guarded.call, guarded.rule
    world = World(snapshot, previous, limits or Limits(), slips)
    channels = rule(Channels, None, world)
    needs = rule(Needs, None, world, channels)
    own = candidates_of(reported, world)
    has_clock = snapshot.knows.clock
    disagree = [
        *candidates_of(mismatches, world, needs),
        *candidates_of(split_mismatches, world),
        *candidates_of(message_mismatches, world, channels),
    ]
    late = candidates_of(missing_ranks, world, needs) if has_clock else []
    if has_clock and not late:
        late = candidates_of(stuck, world, needs)
        late = (late and candidates_of(opposed_order, world)) or late
    candidates = [
        *disagree,
        *candidates_of(creation_mismatches, world),
        *candidates_of(different_splits, world),
        *candidates_of(paired_otherwise, world),
        *candidates_of(joins, world, needs),
        *(
            candidates_of(deadlocks, world, needs)
            if has_clock
            else candidates_of(_without_clock, world, needs, disagree)
        ),
        *candidates_of(departures, world, channels, needs),
        *candidates_of(store_hosts_that_left, world),
        *candidates_of(lost_nodes, world),
        *candidates_of(endings, world),
        *candidates_of(unused_parameters, world),
        *candidates_of(lost_threads, world, needs),
        *late,
        *candidates_of(differing_replicas, world),
        *candidates_of(misaligned, world),
        *own,
        *map(Candidate, [*candidates_of(recorded, world), *candidates_of(unwaited, world)]),
    ]
    if not world.limits.compares:
        candidates = [one for one in candidates if not one.finding.about.of_signatures]
    if has_clock and not any(
        one.finding.severity == "error" and one.weakness < 2 for one in candidates
    ):
        candidates += candidates_of(stalled, world) or candidates_of(standstills, world)
    candidates = rule(alike, candidates, world, candidates)
    causes = []
    for candidate in rule(unreported, candidates, candidates, own):
        candidate = rule(explained_by_unused, candidate, world, candidate)
        causes.append(rule(explained, candidate, world, candidate))
    causes = rule(with_agreement, causes, world, causes)
    folded = [
        rule(in_doubt, candidate, world, causes, candidate)
        for candidate in rule(fold, causes, causes)
    ]
    found = [rule(with_exceptions, finding, world, finding) for finding in _ready(world, folded)]
    found = [rule(expected_elsewhere, finding, world, needs, finding) for finding in found]
    found = [rule(with_other_rows, finding, world, finding) for finding in found]
    found = [rule(with_parting, finding, world, finding) for finding in found]
    found = rule(without_carried, found, found)
    found = [rule(with_decision, finding, world, finding) for finding in found]
    found = [rule(_of_attempt, finding, world, finding) for finding in found]
    notices = candidates_of(late_notices, world, needs) if has_clock else []
    return Diagnosis(tuple(found), tuple(notices))


def _without_clock(world: World, needs: Needs, disagree: list[Candidate]) -> list[Candidate]:
    """Why all stand still. Where there is no clock everybody does who waits: a rank that has come
    to no call, or never ends one, explains it sooner than a cycle, and ranks that disagree explain
    all but a rank of other groups that has come to no call."""
    none_issued = story.rule(never_issued)
    if disagree:
        groups = (one.finding.group for one in disagree)
        differ = {rank for group in groups if group is not None for rank in group.ranks}
        differ |= {rank for rank in world.expected if rank not in world.ranks}
        return list(none_issued(world, needs, differ)) if world.knows.messages else []
    device = next(iter(story.rule(device_stuck)(world)), None)
    found = none_issued(world, needs, (), device) or story.rule(left_behind)(world)
    found = found or story.rule(opposed_order)(world)
    if not found:
        cycles = story.rule(deadlocks)(world, needs)
        found = [unclear(world, one) for one in cycles]
    return list(found or story.rule(all_wait)(world, needs) or story.rule(unended)(world, needs))


@story.step("attempt")
def _of_attempt(world: World, finding: Finding) -> Finding:
    """The finding with the attempt that it is of, where the launcher restarts what fails."""
    about = [world.ranks[rank] for rank in finding.culprits if rank in world.ranks]
    ranks = about or [*world.ranks.values()]
    made = max((one.restart_count for one in ranks), default=0)
    most = max((one.max_restarts for one in ranks), default=0)
    said = f"attempt {made} (after restart {made}{f' of {most}' if most else ''}): "
    said = said if made else "attempt 0 (before any restart): " if most else ""
    headline = finding.headline and said + finding.headline
    return replace(finding, message=said + finding.message, headline=headline) if said else finding


class _Guarded:
    """Runs one part of the diagnosis after the other; one that raises costs only itself."""

    def __init__(self, on_fault: OnFault | None) -> None:
        self._on_fault = on_fault

    def call(self, part: Callable[..., _T], default: Any, *arguments: Any) -> _T | Any:
        """Calls the part. Returns the default where it, or a part that it builds on, has failed."""
        if any(argument is None for argument in arguments):
            return default
        try:
            return part(*arguments)
        except Exception as error:
            if self._on_fault is None:
                raise
            self._on_fault(f"rule {part.__name__}", error)
            return default

    def rule(self, part: Callable[..., Iterable[_T]], *arguments: Any) -> list[_T]:
        """All that a rule finds; some find as they go."""
        found: list[_T] = self.call(story.rule(part), [], *arguments)
        return found


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
    """Returns the findings that may be reported now: behind an error that is held back, later
    errors wait, too."""
    found = []
    held = False
    for candidate in causes:
        if candidate.excused:
            continue
        more = world.knows.clock and not world.snapshot.finished
        early = more and candidate.ready_ns > world.now_ns
        if candidate.finding.severity == "error":
            held = held or early
            if not held:
                found.append(candidate.finding)
        elif not early:
            found.append(candidate.finding)
    return tuple(found)

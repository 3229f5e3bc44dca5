"""`fold` decides which findings are consequences of which, so that a cause is reported once.

Rules, on the findings in order of time:
1. The first error is a cause. Its scope is its group, its culprits and its victims.
2. Endings, waits and absences after it, of ranks in its scope, are consequences, and widen it.
   After a death or an exception that is the whole world: the launcher ends the others. A death
   of its own (SIGKILL, an exception of the user's) of a rank out of scope is a second cause.
3. A mismatch after it is a consequence if one of its culprits is a culprit of the first: that rank
   has left the common path already. In the same group it is one whoever the culprits are, for the
   ranks' calls are no longer each other's. Otherwise it is a second cause. So is it in the same
   group where the ranks refused both calls, or a message: none was made, and those who agreed
   still do; and after wrong data, which do not change whose calls meet. That a rank is a
   culprit of both proves nothing where no rank is singled out: then it is a second cause if they
   have made a call alike in between.
4. Weak endings (see `endings`) are consequences of any stronger finding up to two seconds later,
   too: that a peer is dead is often seen by its partners first. Only a polite signal (SIGTERM)
   must come sooner: the launcher sends it to the others once it has seen a failure.
5. A NaN after a NaN or an overflow is a consequence: calls carry it to all ranks.
6. A suspicion explains nothing that came before it. Warnings are never folded.

Where one fault is a consequence of another only by the clocks of two hosts, which are not known
well enough to tell which came first, `in_doubt` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...record.exits import POLITE_SIGNALS
from ...record.kinds import Family
from ...record.layout import CallState
from ..facts.evidence import call_of
from ..facts.world import World
from ..findings import Finding
from ..limits import AFTERMATH_NS, TOGETHER_NS, Candidate
from ..story import step


def fold(candidates: list[Candidate]) -> list[Candidate]:
    """The causes, first by time first, and all warnings after them in order of time."""
    errors = sorted((c for c in candidates if c.finding.severity == "error"), key=_order)
    # Marks what the records show of a call that ranks have reported as refused: it is about
    # the same refusal.
    refused = {_call(one.finding) for one in errors if one.refused}
    errors = [
        replace(one, refused=True)
        if one.finding.about.by_agreement and _call(one.finding) in refused
        else one
        for one in errors
    ]
    warnings = sorted((c for c in candidates if c.finding.severity != "error"), key=_order)
    causes: list[Candidate] = []
    scopes: list[set[int]] = []
    for candidate in errors:
        if candidate.weakness and _seen_first(candidate, errors):
            continue
        for cause, scope in zip(causes, scopes, strict=True):
            if _follows(candidate, cause, scope):
                scope |= _ranks(candidate.finding)
                break
        else:
            causes.append(candidate)
            scopes.append(_ranks(candidate.finding))
    return causes + warnings


def each_explains_the_other(one: Candidate, other: Candidate) -> bool:
    """Whether of two errors the one that came first is the cause, whichever that is."""
    if one.finding.severity != "error" or other.finding.severity != "error":
        return False
    if one.weakness != other.weakness or not set(one.finding.culprits).isdisjoint(
        other.finding.culprits
    ):
        return False
    return _follows(other, one, _ranks(one.finding)) and _follows(one, other, _ranks(other.finding))


def _call(finding: Finding) -> tuple[object, ...]:
    """The call that it is about, whoever tells of it; messages, which several rules number each in
    its own way, by the ranks between which they are."""
    group = finding.group.name if finding.group else ""
    if finding.kind == "p2p_mismatch":
        return (group, frozenset(finding.culprits))
    return (group, finding.seq)


def _order(candidate: Candidate) -> tuple[int, int, tuple[int, ...]]:
    """By time; at one time what explains comes before what follows from it."""
    finding = candidate.finding
    return (finding.observable_ns, finding.about.follows, finding.culprits)


def _seen_first(weak: Candidate, errors: list[Candidate]) -> bool:
    ranks = _ranks(weak.finding)
    return any(
        other.weakness < weak.weakness
        and other.finding.observable_ns <= weak.finding.observable_ns + _lead_ns(other)
        and not ranks.isdisjoint(_ranks(other.finding))
        for other in errors
    )


def _lead_ns(candidate: Candidate) -> int:
    polite = candidate.finding.data.get("signal") in POLITE_SIGNALS
    return TOGETHER_NS if polite else AFTERMATH_NS


def _follows(candidate: Candidate, cause: Candidate, scope: set[int]) -> bool:
    finding, first = candidate.finding, cause.finding
    if candidate.apart:
        return False
    if candidate.refused and cause.refused and _call(finding) != _call(first):
        return _gone_on_wrong(candidate, first)
    if finding.about.family is first.about.family is Family.DEADLOCK:
        return False  # the wait graph has told independent cycles apart
    if finding.about.spreads and first.about.spreads:
        return True
    if finding.about.follows:
        if first.about.ends_all or candidate.weakness:
            return True
        touched = finding.culprits if finding.about.ends_all else _ranks(finding)
        return not scope.isdisjoint(touched)
    if finding.about.family is Family.MISMATCH:
        message = cause.refused and first.kind == "p2p_mismatch"
        if message or first.about.family is Family.DATA:
            return _gone_on_wrong(candidate, first)
        same = (
            finding.group is not None
            and first.group is not None
            and finding.group.name == first.group.name
        )
        return same or not set(first.culprits).isdisjoint(finding.culprits)
    return False


def _gone_on_wrong(candidate: Candidate, first: Finding) -> bool:
    """Whether a disagreement comes of ranks that went wrong before, though the calls of all still
    met."""
    finding = candidate.finding
    if set(first.culprits).isdisjoint(finding.culprits):
        return False
    known = _singled_out(first) and _singled_out(finding)
    return known or candidate.agreed_ns <= first.observable_ns


def _singled_out(finding: Finding) -> bool:
    """Others of the group are right: not so of a message, nor without a majority."""
    if finding.kind == "p2p_mismatch" or finding.group is None:
        return False
    return set(finding.culprits) < set(finding.group.ranks)


def _ranks(finding: Finding) -> set[int]:
    group = finding.group.ranks if finding.group else ()
    return {*finding.culprits, *finding.victims, *finding.missing, *group}


@step("clocks")
def in_doubt(world: World, candidates: Sequence[Candidate], cause: Candidate) -> Candidate:
    """The cause, with the nearest fault that may have come before it. `candidates`: all that was
    found, before consequences were folded."""
    if not world.snapshot.clock_errors_ns:
        return cause
    finding, doubtful = cause.finding, []
    for other in candidates:
        later_ns = other.finding.observable_ns - finding.observable_ns
        if later_ns < 0 or not each_explains_the_other(cause, other):
            continue
        error_ns = world.snapshot.between_clocks_ns(finding.culprits, other.finding.culprits)
        if later_ns < error_ns:
            doubtful.append((later_ns, error_ns, other.finding.message))
    if not doubtful:
        return cause
    later_ns, error_ns, message = min(doubtful)
    detail = (
        f"this may have come first: {message} ({later_ns / 1e6:.1f} ms later, by clocks of two "
        f"hosts that are known to within {error_ns / 1e6:.1f} ms)"
    )
    return replace(cause, finding=replace(finding, details=(*finding.details, detail)))


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

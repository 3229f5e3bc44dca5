"""Says where one fault is a consequence of another only by the clocks of two hosts, which are not
known well enough to tell which came first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..facts.world import World
from ..findings import Finding
from ..limits import Candidate
from .fold import each_explains_the_other


def in_doubt(world: World, candidates: Sequence[Candidate], finding: Finding) -> Finding:
    """The finding, with the nearest fault that may have come before it. `candidates`: all that was
    found, before consequences were folded."""
    if not world.snapshot.clock_errors_ns or finding.severity != "error":
        return finding
    cause = next((one for one in candidates if _is(one.finding, finding)), None)
    if cause is None:
        return finding
    doubtful = []
    for other in candidates:
        later_ns = other.finding.observable_ns - finding.observable_ns
        error_ns = world.snapshot.between_clocks_ns(finding.culprits, other.finding.culprits)
        if 0 <= later_ns < error_ns and each_explains_the_other(cause, other):
            doubtful.append((later_ns, error_ns, other.finding.message))
    if not doubtful:
        return finding
    later_ns, error_ns, message = min(doubtful)
    detail = (
        f"this may have come first: {message} ({later_ns / 1e6:.1f} ms later, by clocks of two "
        f"hosts that are known to within {error_ns / 1e6:.1f} ms)"
    )
    return replace(finding, details=(*finding.details, detail))


def _is(one: Finding, other: Finding) -> bool:
    """Whether they are about the same fault: parts of the diagnosis add to what a finding says."""
    return (one.kind, one.culprits, one.observable_ns) == (
        other.kind,
        other.culprits,
        other.observable_ns,
    )

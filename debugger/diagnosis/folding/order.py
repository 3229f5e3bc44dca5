"""Says where one fault is a consequence of another only by the clocks of two hosts, which are not
known well enough to tell which came first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..facts.world import World
from ..limits import Candidate
from ..story import step
from .fold import each_explains_the_other


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

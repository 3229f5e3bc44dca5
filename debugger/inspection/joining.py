"""One verdict of what the stacks show and of what is seen beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..diagnosis.findings import Finding
from ..record.wording import ranks_text, verb
from . import surroundings
from .lateness import Limits
from .stance import Doing
from .surroundings import Surroundings
from .suspicions import Look, evidence


def joined(
    found: Sequence[Finding],
    look: Look,
    around: Surroundings,
    pids: Mapping[int, int],
    limits: Limits,
) -> list[Finding]:
    """The findings, the verdict first, with what else bears on it.

    A flight recorder proves what no stack shows: other sizes or types at one sequence number; of a
    job in which nobody stands still that is history, which the program has outlived. What it only
    suspects counts where the stacks have no culprit: nobody is absent, and all stand in the same
    call. So does NCCL's own count of calls.
    """
    recorded = around.recorded.findings if around.recorded is not None else ()
    waits_s = max((one.still_s for one in look.ranks.values() if one.waits), default=0.0)
    unreadable = all(one.doing is Doing.UNREADABLE for one in look.ranks.values())
    open_ = not found or found[0].kind == "stalled"
    stands = unreadable or any(one.still_s >= limits.waiting_s for one in look.ranks.values())
    proven = next((one for one in recorded if one.proven and stands), None)
    verdict: Finding | None = found[0] if found else None
    if proven is not None:
        verdict = _with_stacks(proven, look)
    elif open_ and recorded and (unreadable or waits_s >= limits.still_s):
        verdict = _with_stacks(recorded[0], look)
    elif found and found[0].kind == "stalled":
        verdict = _by_nccl(found[0], surroundings.lagging(around, pids))
    if verdict is None:
        return []
    lines = surroundings.details(around, look.ranks, pids)
    return [replace(verdict, details=[*verdict.details, *lines])]


def _with_stacks(found: Finding, look: Look) -> Finding:
    """A finding of the flight recorder; of a rank of which it says nothing the stack does."""
    stacks = {rank: evidence(one) for rank, one in sorted(look.ranks.items())}
    return replace(found, ranks={**stacks, **found.ranks})


def _by_nccl(found: Finding, lagging: Sequence[int]) -> Finding:
    if not lagging or len(lagging) >= len(found.culprits):
        return found
    return replace(
        found,
        culprits=tuple(lagging),
        victims=tuple(rank for rank in found.culprits if rank not in lagging),
        message=f"{found.message}; NCCL says that {ranks_text(lagging)} "
        f"{verb(lagging, 'is', 'are')} behind",
    )

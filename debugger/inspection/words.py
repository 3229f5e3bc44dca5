"""What a rank of a job does, in words, and as findings have it."""

from __future__ import annotations

from ..diagnosis.findings import RankEvidence
from ..record.states import CAUSES
from ..record.wording import printable, seconds
from .lateness import is_idle
from .stance import Doing, Stance


def state(one: Stance) -> str:
    """What a rank does, in words."""
    if one.cause in CAUSES:
        return CAUSES[one.cause]
    if one.waits:
        return f"waits, for {seconds(int(one.still_s * 1e9))} at least"
    if is_idle(one):
        return f"waits for somebody to connect at {one.serves}"
    if one.doing is Doing.UNREADABLE:
        return f"{one.doing.value}, {'runs' if one.running else 'sleeps'}"
    return "computes" if one.running else one.doing.value


def evidence(one: Stance) -> RankEvidence:
    """Where a rank stands, as findings have it."""
    return RankEvidence(
        state=state(one),
        call=None if one.call is None else printable(one.call),
        location=one.site,
        stack=tuple(printable(line) for line in one.lines),
    )

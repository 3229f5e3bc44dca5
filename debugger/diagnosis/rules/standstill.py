"""No rank is in a call, no process of the run uses a core, and nothing moves: a job without an end.

Rules:
1. Each live rank was looked at from outside (`Process.standstill`) and stands where it stood for
   `hang_timeout`, or waits in the layer for as long for something that no rank brings: a store's
   key, the end of a group. No rank is stopped at a breakpoint.
2. Nothing was seen that may bring the run on: a server that is idle, a person at a terminal, a
   process at work, data on the move, a sleep until a time of its own.
3. Where ranks have ended, or have run their program to its end, those that have not left are
   `missing_rank`. Where none has, all of them are `stalled`: whom they wait for is outside the job.

Nothing of it is proven.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...record.layout import FOR_RANKS
from ...record.snapshot import Standstill
from ...record.wording import at_site, printable, ranks_text, seconds
from ..facts.evidence import chosen, stand, standstill_text
from ..facts.world import World
from ..findings import Finding
from ..limits import Candidate

MOST_TEXTS = 4


def standstills(world: World) -> list[Candidate]:
    """At most one finding."""
    still = _standing(world, world.limits.hang_ns)
    if not still:
        return []
    culprits = tuple(sorted(still))
    since_ns = _since_ns(world, still)
    leaving = len(still) < len(world.ranks) or any(one.leaving for one in still.values())
    finding = Finding(
        kind="missing_rank" if leaving else "stalled",
        message=f"suspected: {_message(still, f'for {seconds(world.now_ns - since_ns)}')}",
        culprits=culprits,
        proven=False,
        cause=("lock" if still[culprits[0]].locked else "user_code") if leaving else None,
        ranks=stand(world, chosen(culprits, ())),
        details=tuple(f"rank {rank}: {place}" for rank in culprits for place in still[rank].others)[
            :MOST_TEXTS
        ],
        observable_ns=since_ns + world.limits.hang_ns,
    )
    return [Candidate(finding)]


def standstill_so_far(world: World, longer_than_ns: int) -> tuple[str, str] | None:
    """Describes a standstill before it is suspected, and how long it has lasted."""
    still = _standing(world, longer_than_ns)
    if not still:
        return None
    return _message(still), seconds(world.now_ns - _since_ns(world, still))


def _standing(world: World, longer_than_ns: int) -> dict[int, Standstill]:
    """The ranks that are alive where all of those stand still; else none."""
    if world.paused or any(rank not in world.ranks for rank in world.expected):
        return {}
    found = {}
    for rank, record in world.ranks.items():
        still = record.process.standstill
        if not record.process.alive:
            continue
        if still is None or still.goes_on:
            return {}
        if any(row.wait.activity in FOR_RANKS for row in world.pending(rank)):
            return {}
        found[rank] = still
    lasted_ns = world.now_ns - _since_ns(world, found) if found else 0
    return found if lasted_ns >= longer_than_ns else {}


def _since_ns(world: World, still: Mapping[int, Standstill]) -> int:
    return max(world.limits.clock_from_ns, *(one.since_ns for one in still.values()))


def _message(still: Mapping[int, Standstill], lasted: str = "any more") -> str:
    texts: dict[str, list[int]] = {}
    for rank, one in sorted(still.items()):
        awaits = f", {printable(one.awaits)}" if one.awaits else ""
        texts.setdefault(f"{standstill_text(one)}{at_site(one.site)}{awaits}", []).append(rank)
    parts = [f"{ranks_text(ranks)}: {text}" for text, ranks in list(texts.items())[:MOST_TEXTS]]
    moved = "nothing has moved" if lasted != "any more" else "nothing moves"
    return f"no rank is in a call, and {moved} {lasted}: {'; '.join(parts)}"

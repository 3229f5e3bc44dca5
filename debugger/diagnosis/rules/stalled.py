"""Everybody waits, and nothing moves, though all that anybody is known to wait for have come; or no
rank is in a call, no process uses a core, and nothing moves: a job without an end.

Rules of the first:
1. Only where no other rule has found an error, but for what a rank says whose time limit ran out.
2. All ranks are there, and each live one waits, with all of its threads, for `hang_timeout_s`;
   in the rendezvous, with the one that joins.
3. Ranks whose own time limit for the rendezvous ran out, while nobody was absent, count as waiting
   until then.
4. The likely cause is told, as far as the records show it: ranks that all are clients of a
   rendezvous which the launcher does not serve there. Who listens at the address, the supervisor
   looks up (`shared_findings.heard_at`); a pure function cannot.

Rules of the second (`standstills`), of which nothing is proven:
1. Each live rank was looked at from outside (`Process.standstill`) and stands where it stood for
   `hang_timeout`, or waits in the layer for as long for something that no rank brings: a store's
   key, the end of a group. No rank is stopped at a breakpoint.
2. Nothing was seen that may bring the run on: a server that is idle, a person at a terminal, a
   process at work, data on the move, a sleep until a time of its own.
3. Where ranks have ended, or have run their program to its end, those that have not left are
   `missing_rank`. Where none has, all of them are `stalled`: whom they wait for is outside the job.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...record.layout import FOR_RANKS, Activity
from ...record.signature import larger_side_bytes
from ...record.snapshot import Standstill, Wait
from ...record.wording import at_site, printable, ranks_text, seconds, verb
from ..facts.evidence import cause_of, chosen, doing, place_text, stand, standstill_text
from ..facts.exceptions import last_exception, timed_out
from ..facts.world import Pending, World
from ..findings import Finding, RankEvidence
from ..limits import SECOND_NS, SLOWEST_BYTES_PER_S, Candidate

RENDEZVOUS = "rendezvous"
MOST_TEXTS = 4


def stalled(world: World) -> list[Candidate]:
    """At most one finding."""
    if world.paused or world.snapshot.finished or not world.ranks:
        return []
    if any(rank not in world.ranks for rank in world.expected):
        return []
    waits: dict[int, Pending] = {}
    eventful = frozenset(world.eventful)
    for rank in world.ranks:
        wait = _stands_still(world, rank)
        if wait is not None:
            waits[rank] = wait
        elif rank not in eventful:
            return []  # it goes on
    given_up = {
        rank: note
        for rank in world.eventful
        if rank not in waits
        and not world.ranks[rank].groups
        and (note := last_exception(world, rank)) is not None
        and timed_out(note)
    }
    others = [rank for rank in world.ranks if rank not in waits and rank not in given_up]
    if any(not world.ended(rank) for rank in others) or not (waits or given_up):
        return []
    joining = all(row.wait.activity is Activity.INIT for row in waits.values())
    if given_up and (others or not joining):
        return []
    times = [row.wait.since_ns + world.limits.hang_ns for row in waits.values()]
    observable_ns = max(times) if not given_up else min(n.time_ns for n in given_up.values())
    return [Candidate(_finding(world, waits, sorted(given_up), observable_ns))]


def _stands_still(world: World, rank: int) -> Pending | None:
    """The longest of the waits in which all threads of the rank are."""
    record = world.ranks[rank]
    rows = world.pending(rank)
    guessed = sum(row.wait.guessed for row in rows)
    if not rows or rank in world.unrecorded or cause_of(world, rank) == "stopped":
        return None
    # Whoever joins waits for its peers alone, whatever further threads of the program do. And a
    # FileStore reads its file, and waits for the file's lock, with the GIL in its hands.
    joins = all(row.wait.activity is Activity.INIT for row in rows)
    if not joins and (record.free_threads > guessed or cause_of(world, rank) == "gil_held"):
        return None
    if any(world.waited_ns(row.wait) < _limit_ns(world, row) for row in rows):
        return None
    return min(rows, key=lambda row: row.wait.since_ns)


def _limit_ns(world: World, row: Pending) -> int:
    """A call may take its time, on a slow network, for what it has to bring."""
    view = world.view(row.rank, row.call.group) if row.call else None
    if row.call is None or view is None:
        return world.limits.hang_ns
    size_bytes = larger_side_bytes(row.call.signature) * len(view.ranks)
    return world.limits.hang_ns + int(size_bytes / SLOWEST_BYTES_PER_S * SECOND_NS)


def _finding(
    world: World, waits: dict[int, Pending], given_up: list[int], observable_ns: int
) -> Finding:
    culprits = tuple(sorted({*waits, *given_up}))
    texts: dict[str, list[int]] = {}
    for rank, row in waits.items():
        texts.setdefault(_what(world, row), []).append(rank)
    parts = [
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} {text}"
        for text, ranks in list(texts.items())[:MOST_TEXTS]
    ]
    if given_up:
        parts.append(f"{ranks_text(given_up)} gave up in init_process_group")
    joining = all(row.wait.activity is Activity.INIT for row in waits.values())
    detail = next((row.wait.detail for row in waits.values()), {})
    since_ns = max((row.wait.since_ns for row in waits.values()), default=observable_ns)
    message = (
        "suspected: everybody waits, and nothing has moved for "
        f"{seconds(world.now_ns - since_ns)}: {'; '.join(parts)}"
    )
    return Finding(
        kind="stalled",
        message=message,
        culprits=culprits,
        proven=False,
        cause=RENDEZVOUS if joining else None,
        ranks=stand(world, chosen(culprits, ())),
        details=(_nobody_serves(detail),) if joining and detail.get("all_clients") else (),
        observable_ns=observable_ns,
        data={"address": str(detail.get("address", ""))} if joining else {},
    )


def _what(world: World, row: Pending) -> str:
    wait = row.wait
    if row.call is not None:
        return doing(world, row)
    if wait.activity is Activity.INIT and wait.detail.get("address"):
        return f"in init_process_group for {printable(str(wait.detail['address']), 120)}{_at(wait)}"
    word = "for" if wait.activity is Activity.STORE else "in"
    return f"{word} {place_text(wait.activity, wait.detail)}{_at(wait)}"


def _at(wait: Wait) -> str:
    return at_site(wait.site)


def _nobody_serves(detail: object) -> str:
    assert isinstance(detail, dict)
    served_at = printable(str(detail.get("served_at")), 120)
    return (
        "every rank is a client there, as the launcher says that it serves the rendezvous "
        f"(TORCHELASTIC_USE_AGENT_STORE), but it does so at {served_at}: give "
        "init_process_group no init_method, or env://"
    )


def standstills(world: World) -> list[Candidate]:
    """At most one finding."""
    still = _standing(world, world.limits.hang_ns)
    if not still:
        return []
    culprits = tuple(sorted(still))
    since_ns = _since_ns(world, still)
    shown = chosen(culprits, ())
    left = {n: RankEvidence(standstill_text(still[n]), None, still[n].site) for n in shown}
    leaving = len(still) < len(world.ranks) or any(one.leaving for one in still.values())
    finding = Finding(
        kind="missing_rank" if leaving else "stalled",
        message=f"suspected: {_message(still, f'for {seconds(world.now_ns - since_ns)}')}",
        culprits=culprits,
        proven=False,
        cause=("lock" if still[culprits[0]].locked else "user_code") if leaving else None,
        # The program of such a rank may be over, by its record.
        ranks=stand(world, shown) | {n: one for n, one in left.items() if world.ended(n)},
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

"""An exception whose cleanup ran on: the `finally` called a collective, or destroyed the group.

To the other ranks that looks like a call that does not fit, or like an early end, long before the
exception comes out of the program. The rank has put the exception on record (note `unwinding`).
"""

from __future__ import annotations

from dataclasses import replace

from ...record.kinds import Family
from ...record.layout import Activity
from ...record.notes import UnwindingNote
from ...record.snapshot import Note
from ...record.wording import RankState, at_site, printable
from ..facts.evidence import call_of
from ..facts.exceptions import is_communication_error
from ..facts.world import World
from ..findings import Finding, RankEvidence
from ..limits import Candidate
from ..story import step

MOST_CALLS = 3
"""A cleanup makes few calls: one that came later is none of this exception's."""


@step("cleanup")
def explained(world: World, candidate: Candidate) -> Candidate:
    """The candidate, or the exception that led to it."""
    finding = candidate.finding
    notes = [
        (note.time_ns, rank, note)
        for rank in finding.culprits
        if rank in world.ranks
        for note in world.notes(rank, UnwindingNote)
        if not is_communication_error(note) and _led_to(world, finding, rank, note)
    ]
    if finding.severity != "error" or not notes:
        return candidate
    _, rank, note = min(notes)
    others = tuple(sorted({*finding.culprits, *finding.victims} - {rank}))
    cause = Finding(
        kind="rank_exception",
        message=f"rank {rank} raised {printable(note.message)}{at_site(note.site)}",
        culprits=(rank,),
        victims=others,
        ranks={**finding.ranks, rank: RankEvidence(RankState.RAISED, None, note.site)},
        details=(f"before it could end, its cleanup ran: {finding.message}", *finding.details),
        observable_ns=finding.observable_ns,
        data=dict(note.data),
    )
    return replace(candidate, finding=cause)


def _led_to(world: World, finding: Finding, rank: int, note: Note) -> bool:
    unwinding = UnwindingNote.read(note.data)
    if unwinding is None or unwinding.call < 0:
        return False
    first = unwinding.call
    if finding.about.leaves:
        few = 0 <= world.ranks[rank].calls - first <= MOST_CALLS
        return few and not _makes_it_anew(world, finding, rank)
    if unwinding.destroys:
        return False
    if finding.about.stuck:
        calls = [row.call for row in world.pending(rank)]
    elif finding.about.family is Family.MISMATCH and finding.group and finding.seq is not None:
        calls = [call_of(world, finding.group.name, finding.seq, rank)]
    else:
        return False
    return any(call is not None and 0 <= call.number - first <= MOST_CALLS for call in calls)


def _makes_it_anew(world: World, finding: Finding, rank: int) -> bool:
    """Whether the rank makes, or has made, a group again in which the others still are: it recovers
    from the exception, and does not end of it."""
    if any(row.wait.activity is Activity.INIT for row in world.pending(rank)):
        return True
    name = finding.group.name if finding.group is not None else None
    made = [
        max((number for one, number in world.ranks[member].groups if one == name), default=0)
        for member in (rank, *finding.victims)
        if member in world.ranks
    ]
    return any(made[0] > other for other in made[1:])

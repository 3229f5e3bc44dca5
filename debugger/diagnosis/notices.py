"""Notices are lines printed while the run goes on: who is late, and what ranks put on record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..record.layout import Activity
from ..record.notes import ForkedNote, NotInGroupNote
from ..record.snapshot import Note
from ..record.wording import (
    RankState,
    at_site,
    call_text,
    numbered,
    printable,
    ranks_text,
    seconds,
    site_text,
    verb,
)
from .facts.evidence import cause_of, chosen, place_text, stand, standing
from .facts.exceptions import last_to_come
from .facts.needs import Needs
from .facts.world import World
from .findings import Finding, RankEvidence
from .limits import SECOND_NS
from .rules.late_rank import latest
from .rules.stalled import standstill_so_far


@dataclass(frozen=True, slots=True)
class Notice:
    """`what` is the same as long as the matter is; how long it has lasted, and where, changes."""

    what: str
    waited: str
    where: str = ""

    @property
    def text(self) -> str:
        """`rank 2 is late for all_reduce(...) #17 of group "a" (14 s); it is at train.py:8`."""
        return f"{self.what} ({self.waited}){self.where}"


def late_notices(world: World, needs: Needs) -> tuple[Notice, ...]:
    """`rank 2 is late for all_reduce(...) #17 of group "default_pg" (14 s); it is at ...`."""
    if world.paused or world.snapshot.finished:
        return ()
    after_ns = int(world.limits.notice_after_s * SECOND_NS)
    found = []
    late = latest(world, needs, after_ns)
    if late:
        call = late.pending.call
        view = world.view(late.pending.rank, call.group) if call else None
        wait = late.pending.wait
        what = call_text(call) if call else place_text(wait.activity, wait.detail)
        if call and view and call.signature.peer is None:
            what += f" {numbered(view.any, call.seq)}"
        waited = seconds(world.now_ns - wait.since_ns)
        are_late = f"{ranks_text(late.culprits)} {verb(late.culprits, 'is', 'are')} late for {what}"
        found.append(Notice(are_late, waited, _where(world, late.culprits)))
    standstill = standstill_so_far(world, after_ns)
    if standstill is not None:
        found.append(Notice(*standstill))
    absent = _not_joined(world, needs, after_ns)
    return (*found, *absent)


def _where(world: World, culprits: tuple[int, ...]) -> str:
    where = standing(world, culprits[0])
    it = "it" if len(culprits) == 1 else f"rank {culprits[0]}"
    cause = cause_of(world, culprits[0])
    if cause == "stopped":
        return f"; {it} is {RankState.STOPPED}{at_site(where.location)}"
    if any(
        row.call is not None or row.wait.activity is Activity.STORE
        for row in world.pending(culprits[0])
    ):
        return f"; {it} {where.state}{at_site(where.location)}"
    return f"; {it} is at {site_text(where.location)}" if where.location else ""


def _outside(ranks: tuple[int, ...], note: Note) -> str:
    who = f"{ranks_text(ranks)} called a collective on a group {verb(ranks, 'it is', 'they are')}"
    return f"{who} not in, which does nothing{at_site(note.site)}: {printable(note.message)}"


def _evidence(world: World, rank: int, note: Note) -> dict[int, RankEvidence]:
    if note.site is None:
        return stand(world, [rank])
    return {rank: RankEvidence(note.kind.replace("_", " "), None, note.site)}


def _also(world: World, finding: Finding, rank: int, note: Note) -> Finding:
    """The finding with one more rank that has made the same mistake on the same line."""
    if rank in finding.culprits or not NotInGroupNote.matches(note):
        return finding
    culprits = (*finding.culprits, rank)
    ranks = {**finding.ranks, **_evidence(world, rank, note)}
    return replace(
        finding,
        culprits=culprits,
        message=_outside(culprits, note),
        ranks={one: ranks[one] for one in chosen(culprits, ())},
        observable_ns=min(finding.observable_ns, note.time_ns),
    )


def _not_joined(world: World, needs: Needs, after_ns: int) -> tuple[Notice, ...]:
    waiting = world.engaged(Activity.INIT)
    if not waiting or world.waited_ns(last := last_to_come(waiting)) < after_ns:
        return ()
    for rank in sorted(waiting):
        absent = [other for other in needs.not_initialised(rank) if not world.ended(other)]
        if absent:
            waited = seconds(world.now_ns - last.since_ns)
            is_are = verb(absent, "has", "have")
            return (Notice(f"{ranks_text(absent)} {is_are} not joined the world yet", waited),)
    return ()


def recorded(world: World) -> list[Finding]:
    """Findings that a rank put on record itself: calls on foreign groups, use after a fork."""
    found: dict[tuple[object, ...], Finding] = {}
    for number in world.eventful:
        for note in world.ranks[number].notes:
            forked = ForkedNote.matches(note)
            if not forked and not NotInGroupNote.matches(note):
                continue
            key = (note.kind, number if forked else None, note.site)
            if key in found:
                found[key] = _also(world, found[key], number, note)
                continue
            if forked:
                message = (
                    f"a forked child of rank {number} used the process group of its parent"
                    f"{at_site(note.site)}: {printable(note.message)}"
                )
            else:
                message = _outside((number,), note)
            found[key] = Finding(
                kind=note.kind,
                message=message,
                culprits=(number,),
                severity="error" if forked else "warning",
                ranks=_evidence(world, number, note),
                observable_ns=note.time_ns,
                data=dict(note.data),
            )
    return list(found.values())

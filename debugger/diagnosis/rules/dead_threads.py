"""Threads that died of an exception while their rank lives on: Python prints it and goes on.

Rules:
1. Others wait for a rank in a call of a group, and the rank's last call in that group was made by
   a thread that an exception has ended since: nobody is left to make the call. Reported as that
   exception after a short while, since a program may start another thread in its place.
2. Any other finding whose culprit has lost a thread before says so.
"""

from __future__ import annotations

from dataclasses import replace

from ...record.notes import ThreadExceptionNote, raised
from ...record.snapshot import Call, Note
from ...record.wording import at_site, printable, ranks_text, verb
from ..facts.evidence import chosen, doing, stand
from ..facts.exceptions import is_communication_error
from ..facts.needs import Needs
from ..facts.world import GroupView, Pending, World
from ..findings import Finding, RankEvidence, group_evidence
from ..limits import SECOND_NS, Candidate
from ..story import step

ANOTHER_NS = 5 * SECOND_NS
"""So long a program has time to start another thread in place of one that died."""


def lost_threads(world: World, needs: Needs) -> list[Candidate]:
    """Returns one finding for each rank whose dead thread others wait for."""
    dead = {rank: notes for rank in world.eventful if (notes := deaths(world, rank))}
    if not dead:
        return []
    found: dict[int, Candidate] = {}
    for pending in world.all_pending():
        call = pending.call
        view = world.view(pending.rank, call.group) if call else None
        need = needs.of(pending)
        if call is None or view is None or need is None or need.any_of:
            continue
        for rank in sorted(need.ranks & dead.keys()):
            note = _made_the_calls(world, view, rank, call, dead[rank])
            if note is not None and rank not in found:
                found[rank] = _finding(world, view, pending, rank, note)
    return list(found.values())


def deaths(world: World, rank: int) -> list[Note]:
    """The exceptions that ended threads of the rank, but for those that another rank caused."""
    notes = world.notes(rank, ThreadExceptionNote) if rank not in world.unrecorded else []
    return [note for note in notes if not is_communication_error(note)]


@step("dead thread")
def mentioned(world: World, finding: Finding) -> Finding:
    """The finding, with the thread that its culprits lost before it, if they did."""
    lines = [
        f"before that, {_thread(note, whose='')} of rank {rank} died of "
        f"{printable(note.message, 200)}{at_site(note.site)}"
        for rank in finding.culprits[:4]
        if rank in world.ranks
        for note in deaths(world, rank)[:1]
        if note.time_ns <= finding.observable_ns and note.message != finding.data.get("message")
    ]
    return replace(finding, details=(*lines, *finding.details)) if lines else finding


def _made_the_calls(
    world: World, view: GroupView, rank: int, awaited: Call, notes: list[Note]
) -> Note | None:
    history = world.ranks[rank].history
    state = view.states.get(rank)
    if history is None or state is None:
        return None
    if awaited.signature.peer is not None:
        made = [row for row in history.recent(256) if row.signature.peer is not None]
        last = next((row for row in reversed(made) if row.group == view.key), None)
    else:
        last = history.at(view.key, state.issued - 1) if state.issued else None
    if last is None:
        return None
    return next(
        (
            note
            for note in notes
            if raised(note).thread_slot == last.thread and last.issued_ns <= note.time_ns
        ),
        None,
    )


def _finding(world: World, view: GroupView, pending: Pending, rank: int, note: Note) -> Candidate:
    call = pending.call
    assert call is not None
    if call.signature.peer is None:
        waiting = [other for other, state in view.states.items() if state.issued > call.seq]
    else:
        waiting = [pending.rank]
    victims = tuple(sorted(set(waiting) - {rank}))
    own = raised(note).own_fault
    whose = "distdebug itself failed: " if own else ""
    gone = world.ended(rank)
    suspected = "" if gone else "suspected: "
    evidence = stand(world, chosen((rank,), victims), call)
    evidence[rank] = RankEvidence(f"lost {_thread(note)}", None, note.site)
    finding = Finding(
        kind="tool_error" if own else "rank_exception",
        message=(
            f"{whose}rank {rank} raised {printable(note.message)} in {_thread(note)}"
            f"{at_site(note.site)}, which ended that thread only; {suspected}{ranks_text(victims)} "
            f"{verb(victims, 'waits', 'wait')} for its next call {doing(world, pending)}"
        ),
        culprits=(rank,),
        victims=victims,
        proven=gone,
        group=group_evidence(view.any),
        seq=call.seq,
        ranks=evidence,
        observable_ns=max(note.time_ns, pending.wait.since_ns),
        data={**note.data, "message": note.message},
    )
    hold_ns = 0 if gone else min(ANOTHER_NS, world.limits.hang_ns)
    return Candidate(finding, ready_ns=finding.observable_ns + hold_ns)


def _thread(note: Note, whose: str = "its ") -> str:
    name = raised(note).thread
    return f"{whose}thread {printable(name, 60)!r}" if name else "a thread"

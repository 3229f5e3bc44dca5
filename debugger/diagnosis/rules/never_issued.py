"""A rank may never have issued the call in which others wait. These rules are for a record that
has no clock (`Knows.clock`), in which no rank is late.

Rules:
1. A rank that has nothing pending, while another waits in a call that it has not issued, or in a
   message of which it has not issued the other end: nothing on record holds it up. One whose record
   was written before that is named only where no other rank is at fault.
2. A rank without a record, if another waits for it in its oldest pending call. (What lies behind
   an older call is issued and cannot begin, on whichever ranks have it: that a rank without a
   record is not among them tells nothing.) It is not known what it has issued: it is missing, and
   named only where the records of all others are there, and no other rank can be at fault.
3. Where no rank waits, for all have given up: one that has issued fewer calls of a group than
   others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from ...record.layout import CallState
from ...record.snapshot import Call
from ...record.wording import call_text, numbered, ranks_text
from ..facts.evidence import chosen, last_call, of_call, standing
from ..facts.needs import Needs
from ..facts.world import GroupView, World, is_collective, written_before
from ..findings import CallIs, Finding, RankEvidence, group_evidence
from ..limits import Candidate


@dataclass(frozen=True, slots=True)
class Awaited:
    """A call that ranks wait in, and those that have not issued it."""

    view: GroupView
    call: Call
    absent: tuple[int, ...]
    waiting: tuple[int, ...]

    @property
    def order(self) -> tuple[bool, int]:
        """Sorts collectives first: of a rank that both wait for, they say more than messages."""
        return self.call.signature.peer is not None, self.call.issued_ns


def never_issued(
    world: World,
    needs: Needs,
    apart_from: Collection[int] = (),
    device: Candidate | None = None,
) -> list[Candidate]:
    """At most one finding, of ranks that are not in `apart_from`; beside that of ranks whose
    device stands still, if there is one: a rank without a record may have that fault as well."""
    idle: dict[int, Awaited] = {}
    early: dict[int, Awaited] = {}
    unseen: dict[int, Awaited] = {}
    at_fault = device.finding.culprits if device else ()
    for awaited in sorted(_awaited(world, needs), key=lambda one: one.order):
        absent = [rank for rank in awaited.absent if rank not in apart_from]
        gone = [rank for rank in absent if rank not in world.ranks]
        if gone and _is_in_front(world, awaited, at_fault):
            unseen |= {rank: unseen.get(rank, awaited) for rank in gone}
        for rank in absent:
            if rank in world.ranks and not world.ranks[rank].waits:
                before = written_before(world, rank, awaited.call.issued_ns)
                (early if before else idle).setdefault(rank, awaited)
    alone = device is None and len(unseen) == 1 == world.size - len(world.ranks)
    named = idle or ({} if unseen or device else early)
    if device and unseen and not named:
        text = "is here, of whom others wait for what may not be issued either"
        message = f"{device.finding.message}; no dump of {ranks_text(unseen)} {text}"
        ranks = {**{rank: _last_seen(world, rank) for rank in unseen}, **device.finding.ranks}
        missing = tuple(sorted(unseen))
        finding = replace(device.finding, message=message, missing=missing, ranks=ranks)
        return [replace(device, finding=finding)]
    found = [device] if device else []
    if named or unseen:
        why = f"; no dump of {ranks_text(unseen)} is here" if unseen else ""
        if named and named is early:
            whose = "its dump was" if len(early) == 1 else "their dumps were"
            why = f"; {whose} written before, and may be of a moment at which the job was at work"
        elif named and not world.knows.messages:
            why += "; whether one is in a message, or forms a group, is not in this kind of record"
        culprits = sorted(named or (unseen if alone else ()))
        first = min([*named.values(), *unseen.values()], key=lambda one: one.order)
        wait = f"{call_text(first.call)} {world.place(first.view, first.call)} waits for "
        wait += f"{ranks_text(first.absent)}{why}"
        if named:
            wait = f"{ranks_text(culprits)} never issued what others wait in: {wait}"
        others = sorted(world.waiting.difference(culprits, apart_from))
        side = "host" if idle else None
        finding = _finding(world, wait, culprits, others, first.view, first.call, side)
        ranks = {**finding.ranks, **{rank: _last_seen(world, rank) for rank in unseen}}
        finding = replace(finding, missing=tuple(sorted(unseen)), ranks=ranks)
        found.append(Candidate(finding, apart=True))
    return found


def _awaited(world: World, needs: Needs) -> Iterator[Awaited]:
    for view in world.groups:
        oldest: dict[int, list[int]] = {}
        for rank, state in view.states.items():
            if state.completed is not None and state.completed < state.issued:
                oldest.setdefault(state.completed, []).append(rank)
        for seq, waiting in oldest.items():
            states = view.states
            absent = [
                rank for rank in view.ranks if rank not in states or states[rank].issued <= seq
            ]
            calls = (world.collective(rank, view, seq) for rank in waiting) if absent else ()
            made = [call for call in calls if call is not None]
            if made:
                first = min(made, key=lambda call: call.issued_ns)
                yield Awaited(view, first, tuple(absent), tuple(waiting))
    for row in world.all_pending:
        if row.call is None or row.call.signature.peer is None:
            continue
        group, need = world.view(row.rank, row.call.group), needs.of(row)
        if group is not None and need is not None:
            yield Awaited(group, row.call, tuple(sorted(need.ranks)), (row.rank,))


def _is_in_front(world: World, awaited: Awaited, at_fault: Collection[int]) -> bool:
    """Whether one of its ranks that is not at fault has nothing older that pends."""
    call = awaited.call
    rows = (row for rank in awaited.waiting if rank not in at_fault for row in world.pending(rank))
    return any(
        row.call is not None
        and (row.call is call or is_collective(row.call, call.group, call.seq))
        and (row.call.signature.peer is None) == (call.signature.peer is None)
        for row in rows
    )


def left_behind(world: World) -> list[Candidate]:
    """The earliest call of which rule 3 is true."""
    if world.waiting:
        return []
    found: list[tuple[GroupView, Call, list[int]]] = []
    for view in world.groups:
        seq = min(state.issued for state in view.states.values())
        late = sorted(rank for rank, state in view.states.items() if state.issued == seq)
        ahead = view.states.keys() - set(late)
        calls = [call for rank in ahead if (call := world.collective(rank, view, seq)) is not None]
        if not calls or any(_is_elsewhere(world, rank, view) for rank in late):
            continue
        newest_ns = max(_newest_ns(world, rank, view) for rank in ahead)
        if not any(written_before(world, rank, newest_ns) for rank in late):
            found.append((view, min(calls, key=lambda call: call.issued_ns), late))
    if not found:
        return []
    view, call, late = min(found, key=lambda one: one[1].issued_ns)
    others = sorted(view.states.keys() - set(late))
    text = (
        f"{ranks_text(late)} never issued {call_text(call)} {numbered(view.any, call.seq)}, which "
        f"{ranks_text(others)} did"
    )
    finding = _finding(world, text, late, others, view, call, "host")
    return [Candidate(finding, apart=True)]


def _is_elsewhere(world: World, rank: int, view: GroupView) -> bool:
    """Returns whether the rank has initialised again, so that it may have left this world for its
    next."""
    again = world.ranks[rank].groups.get((view.key[0], view.key[1] + 1))
    return again is not None and again.issued > 0


def _newest_ns(world: World, rank: int, view: GroupView) -> int:
    last = world.collective(rank, view, view.states[rank].issued - 1)
    return last.issued_ns if last is not None else 0


def _finding(
    world: World,
    text: str,
    culprits: Collection[int],
    others: Collection[int],
    view: GroupView,
    call: Call,
    side: str | None,
) -> Finding:
    is_message = call.signature.peer is not None
    return Finding(
        kind="unmatched_p2p" if is_message else "missing_rank",
        message=f"suspected: {text}",
        culprits=tuple(culprits),
        victims=tuple(others),
        proven=False,
        cause=None if is_message else "unknown",
        group=group_evidence(view.any),
        seq=None if is_message else call.seq,
        ranks={
            rank: standing(world, rank) if rank in world.waiting else _last_seen(world, rank)
            for rank in chosen(culprits, others)
        },
        observable_ns=call.issued_ns,
        side=side,
    )


def _last_seen(world: World, rank: int) -> RankEvidence:
    """Returns the evidence of a rank that waits for nothing."""
    if rank not in world.ranks:
        return RankEvidence("no dump of it is here")
    history = world.ranks[rank].history
    last = last_call(world, rank) or next(iter(history.recent(1) if history else ()), None)
    if last is None:
        return RankEvidence("has nothing pending")
    state = "has issued a part of" if last.state is CallState.ISSUED else "was last in"
    return of_call(state, last, last.site, CallIs.OBJECT)

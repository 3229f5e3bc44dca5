"""Why all stand still, by a record that has no clock (`Knows.clock`), in which no rank is late.

A rank may *never have issued* the call in which others wait:

1. A rank that has nothing pending, while another waits in a call that it has not issued, or in a
   message of which it has not issued the other end: nothing on record holds it up. One whose record
   was written before that is named only where no other rank is at fault.
2. A rank without a record, if another waits for it in its oldest pending call. (What lies behind
   an older call is issued and cannot begin, on whichever ranks have it: that a rank without a
   record is not among them tells nothing.) It is not known what it has issued: it is missing, and
   named only where the records of all others are there, and no other rank can be at fault.
3. Where no rank waits, for all have given up: one that has issued fewer calls of a group than
   others.

A rank may have issued a call and never complete it: its *device*, or the network, stands still:

1. *Never completed*: a rank's oldest pending call of a group is complete on another member: all
   have issued it, and this rank alone has not come to its end. A root may be over with a broadcast
   long before the others come to it: that alone says so only where the call is in front on all who
   are in it. Or, where records tell when calls begin: it has begun on others, and here it has not.
2. *Unended*: where no rank explains why all wait, following who waits for whom ends in calls that
   all have come to, and no rank has completed.
3. A rank in a call that newer ones have overwritten in the record may hold up all others, and of
   messages that cannot be paired any more it is not known which is left out: no rank is named for
   that alone.

There are two deadlocks of such a record:

*Opposed order*: calls of two groups that ranks have issued in opposite order. Each device ends the
one that it was given first, and neither group has all its ranks in one call. All ranks have issued
both calls, so that nobody waits for a call that is still to come.

*All wait*: everybody waits, and some alone in groups of which the record does not say who else is
in them (`Group.members_known`): each of those waits for one of the others, and whoever that is,
following who waits for whom ends in a cycle. The culprits are the ranks without which there is
none; where there are none of these, all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from ...record.layout import CallState
from ...record.ops import op_of
from ...record.snapshot import Call
from ...record.wording import call_text, numbered, ranks_text, verb
from ..facts.evidence import chosen, last_call, of_call, standing
from ..facts.needs import Need, Needs
from ..facts.waits import find_cycle
from ..facts.world import GroupView, Pending, World, is_collective, on_nccl, written_before
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
        if gone and _stands_in_front(world, awaited, at_fault):
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
        finding = _absence(world, wait, culprits, others, first.view, first.call, side)
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


def _stands_in_front(world: World, awaited: Awaited, at_fault: Collection[int]) -> bool:
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
    finding = _absence(world, text, late, others, view, call, "host")
    return [Candidate(finding, apart=True)]


def _is_elsewhere(world: World, rank: int, view: GroupView) -> bool:
    """Returns whether the rank has initialised again, so that it may have left this world for its
    next."""
    again = world.ranks[rank].groups.get((view.key[0], view.key[1] + 1))
    return again is not None and again.issued > 0


def _newest_ns(world: World, rank: int, view: GroupView) -> int:
    last = world.collective(rank, view, view.states[rank].issued - 1)
    return last.issued_ns if last is not None else 0


def _absence(
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


@dataclass(frozen=True, slots=True)
class Stuck:
    """A call that a rank has issued, and that `ahead` is beyond; or in, where it has `begun`."""

    view: GroupView
    call: Call
    ahead: int
    begun: bool = False


def device_stuck(world: World) -> list[Candidate]:
    """At most one finding, of all ranks that rule 1 is true of."""
    found = dict(_not_begun(world))
    for rank, stuck in _not_completed(world):
        known = found.get(rank)
        if known is None or known.begun or stuck.call.issued_ns < known.call.issued_ns:
            found[rank] = stuck
    if not found:
        return []
    calls = {rank: stuck.call for rank, stuck in found.items()}
    first = found[min(found, key=lambda rank: calls[rank].issued_ns)]
    how = (
        "has not begun it, which rank {} has"
        if first.begun
        else "never completed it, which rank {} did"
    )
    text = (
        f"{ranks_text(found)} issued {call_text(first.call)} "
        f"{world.place(first.view, first.call)} and {how.format(first.ahead)}"
    )
    text += ": the device stands still" if world.knows.completion else ""
    finding = _stalled(world, text, calls, first.call)
    is_old = world.knows.completion and all(
        world.now_ns - call.issued_ns >= world.limits.hang_ns for call in calls.values()
    )
    if finding.victims or is_old or any(one.state is CallState.FAILED for one in calls.values()):
        return [Candidate(finding, apart=True)]
    return []  # the last calls of a job that is over, of which the record lags


def _not_completed(world: World) -> Iterator[tuple[int, Stuck]]:
    for view in world.groups:
        most = max(state.completed or 0 for state in view.states.values())
        for rank, state in view.states.items():
            seq = state.completed
            if seq is None or seq >= min(state.issued, most):
                continue
            call = world.collective(rank, view, seq)
            if call is None or _is_owed(world, view, seq):
                continue
            # A rank that has completed this call, or a later one of the group which nobody is over
            # with before all are in it: nothing but its own device can keep this one in the call.
            seqs = [call.seq]
            if op_of(call.signature.op).certain != "all" and not _is_in_front(world, view, call):
                later = range(call.seq + 1, view.states[rank].issued)
                calls = (world.collective(rank, view, seq) for seq in later)
                seqs = [
                    one.seq for one in calls if one and op_of(one.signature.op).certain == "all"
                ]
            beyond = ((seq, other) for seq in seqs for other in view.states if other != rank)
            ahead = next(
                (other for seq, other in beyond if (view.states[other].completed or 0) > seq), None
            )
            over = world.collective(ahead, view, seq) if ahead is not None else None
            if ahead is not None and not (
                over is not None and written_before(world, rank, over.completed_ns)
            ):
                yield rank, Stuck(view, call, ahead)
    for rank in world.ranks:
        stuck = _behind_its_messages(world, rank)
        if stuck is not None:
            yield rank, stuck


def _behind_its_messages(world: World, rank: int) -> Stuck | None:
    """Returns the message in which the rank is stuck, if the other ends of all its messages are
    complete. (A batch ends with the last of its messages: the others may be there long before.)"""
    rows = world.pending(rank)
    for row in rows:
        call, partner = row.call, row.call.signature.peer if row.call else None
        if call is None or partner is None or partner not in world.ranks or row.wait.guessed:
            return None
        peer, way = world.ranks[partner], "recv" if call.signature.op == "send" else "send"
        wanted = (call.group, way, rank)
        channel = next((o for o in peer.channels if (o.group, o.op, o.peer) == wanted), None)
        other = peer.history.message(channel, call.seq) if channel and peer.history else None
        if other is None or other.state is not CallState.COMPLETED:
            return None
    first = rows[0].call if rows else None
    view = world.view(rank, first.group) if first else None
    if first is None or view is None or first.signature.peer is None:
        return None
    return Stuck(view, first, first.signature.peer)


def _is_in_front(world: World, view: GroupView, call: Call) -> bool:
    """Whether all members that are not over with the call stand in it."""
    return all(
        rank in view.states
        and (
            (view.states[rank].completed or 0) > call.seq
            or any(
                one.call is not None and is_collective(one.call, call.group, call.seq)
                for one in world.pending(rank)
            )
        )
        for rank in view.ranks
    )


def _is_owed(world: World, view: GroupView, seq: int) -> bool:
    """Whether a rank that could have has not even issued the call: then the others cannot have
    completed it, whatever their records say: torch marks what it has given up as complete."""
    return any(
        other in world.ranks and not world.ranks[other].waits
        for other in view.ranks
        if other not in view.states or view.states[other].issued <= seq
    )


def _not_begun(world: World) -> Iterator[tuple[int, Stuck]]:
    known: dict[tuple[int, int], int | None] = {}
    for one in world.all_pending:
        call = one.call
        view = world.view(one.rank, call.group) if call else None
        if call is None or view is None or call.signature.peer is not None:
            continue
        if call.state is not CallState.ISSUED or _is_owed(world, view, call.seq):
            continue
        at = (id(view), call.seq)
        if at not in known:
            ranks = (rank for rank in view.states if _is_within(world, rank, view, call.seq))
            known[at] = next(ranks, None)
        begun = known[at]
        if begun is not None:
            yield one.rank, Stuck(view, call, begun, begun=True)


def _is_within(world: World, rank: int, view: GroupView, seq: int) -> bool:
    """Whether the rank's oldest pending call of the group is this one, and has begun."""
    call = world.collective(rank, view, seq) if view.states[rank].completed == seq else None
    return call is not None and call.state is CallState.STARTED and call.started_ns > 0


# -- where following ends ------------------------------------------------------------------------


def unended(world: World, needs: Needs) -> list[Candidate]:
    """Returns one finding for each call at which rule 2 ends; one without culprits where the record
    has lost a pending call."""
    rows = world.all_pending
    lost = sorted(row.rank for row in rows if row.wait.call is None)
    if lost:
        text = (
            f"nothing moves, and {ranks_text(lost)} {verb(lost, 'stands', 'stand')} in a call that "
            "newer ones have overwritten in the record: who holds up the others is not to be told "
            "(TORCH_FR_BUFFER_SIZE is how many calls are kept)"
        )
        return [Candidate(_stalled(world, text, {}, None, names=False))]
    ends: dict[tuple[int, int], dict[int, Call]] = {}
    fronts: dict[int, Call] = {}
    peers: dict[int, set[int]] = {}
    alone: set[int] = set()
    for row in rows:
        call = row.call
        view = world.view(row.rank, call.group) if call else None
        if call is None or view is None:
            continue
        fronts.setdefault(row.rank, call)
        if call.signature.peer is not None:
            peers.setdefault(row.rank, set()).add(call.signature.peer)
            if needs.of(row) is None:
                alone.add(row.rank)
        elif needs.of(row) is None and not any(
            (state.completed or 0) > call.seq for state in view.states.values()
        ):
            # Else it is the last call of a job that is over, of which a record lags.
            ends.setdefault((id(view), call.seq), {})[row.rank] = call
    found = [(min(calls), calls) for calls in ends.values()]
    while alone:
        together = _joined(peers, min(alone)) & fronts.keys()
        found.append((min(alone), {rank: fronts[rank] for rank in sorted(together)}))
        alone -= together
    return [Candidate(_unended(world, first, calls), apart=True) for first, calls in found]


def _joined(peers: Mapping[int, Collection[int]], start: int) -> set[int]:
    """Returns this rank, and the ranks that pending messages connect with it, directly or not."""
    found, left = {start}, [start]
    while left:
        for rank in peers.get(left.pop(), ()):
            if rank not in found:
                found.add(rank)
                left.append(rank)
    return found


def _unended(world: World, first: int, calls: Mapping[int, Call]) -> Finding:
    call = calls[first]
    view = world.view(first, call.group)
    assert view is not None
    text = f"{call_text(call)} {world.place(view, call)}"
    if view.any.members_known:
        have, none = ("have all", "none has") if len(calls) > 1 else ("has", "has not")
        text = f"{ranks_text(calls)} {have} issued {text} and {none} completed it"
        if world.knows.completion:
            text += ": the network between them, or the device of one, stands still"
        return _stalled(world, text, calls, call)
    # Who is not known to wait for them may be the one that they wait for.
    waiting = {row.rank for row in world.all_pending if row.call is not None}
    names = world.knows.completion and world.size == len(waiting)
    text = (
        f"{ranks_text(calls)} {verb(sorted(calls), 'waits', 'wait')} in {text}"
        f"{', and all others for them' * names}: who else is in that group is not in this kind of "
        "record"
    )
    return replace(_stalled(world, text, calls, call, names=names), side=None)


def unclear(world: World, candidate: Candidate) -> Candidate:
    """The cycle; one that goes through messages which cannot be paired any more is none."""
    finding = candidate.finding
    rows = [row for rank in finding.culprits for row in world.pending(rank)]
    if not any(row.wait.guessed for row in rows):
        return candidate
    text = (
        f"suspected: {ranks_text(finding.culprits)} wait for each other's messages, first in "
        f"{call_text(rows[0].call)}; their records have lost those before, and nothing tells which "
        "one is left out or never completed"
    )
    finding = replace(finding, kind="stalled", message=text, headline="", cycle=(), details=())
    return replace(candidate, finding=finding)


def _stalled(
    world: World, text: str, calls: Mapping[int, Call], first: Call | None, *, names: bool = True
) -> Finding:
    """Returns the finding of ranks that are in these calls, of which `first` is one. They are its
    culprits only with `names`."""
    culprits: Collection[int] = sorted(calls) if names else ()
    waiting = [rank for rank in sorted(world.waiting) if rank not in culprits]
    view = (
        world.view(next(rank for rank in calls if calls[rank] is first), first.group)
        if first
        else None
    )
    times = [call.issued_ns for call in calls.values()] or [
        row.wait.since_ns for row in world.all_pending
    ]
    return Finding(
        kind="stalled",
        message=f"suspected: {text}",
        culprits=tuple(culprits),
        victims=tuple(waiting),
        proven=False,
        group=group_evidence(view.any) if view is not None else None,
        seq=first.seq if first is not None and first.signature.peer is None else None,
        ranks={
            rank: of_call("issued, never completed", calls[rank], calls[rank].site)
            if rank in culprits
            else standing(world, rank)
            for rank in chosen(culprits, waiting)
        },
        observable_ns=min(times),
        side="device" if world.knows.completion and culprits else None,
    )


AMONG = "suspected: all ranks wait, and some of them for each other"
MOST_AMONG = 64
MOST_STEPS = 4


def all_wait(world: World, needs: Needs) -> list[Candidate]:
    """At most one finding."""
    fronts = {rank: rows[0] for rank in world.ranks if (rows := world.pending(rank))}
    if not world.size == len(world.ranks) == len(fronts) <= MOST_AMONG or world.knows.completion:
        return []
    waiting: dict[int, list[Need]] = {}
    alone = {rank for rank, front in fronts.items() if _is_alone(world, front)}
    for rank, front in fronts.items():
        need = needs.of(front)
        if rank in alone:
            need = Need(frozenset(fronts.keys() - {rank}), any_of=True)
        if need is None:
            return []
        waiting[rank] = [need]
    if not alone or len(fronts) < 2:
        return []
    culprits = [
        rank for rank in sorted(fronts) if find_cycle(waiting, waiting.keys() - {rank}) is None
    ]
    return [Candidate(_all_waiting(world, fronts, culprits or sorted(fronts), alone))]


def _is_alone(world: World, front: Pending) -> bool:
    """A call of a group of one is never waited in."""
    view = world.view(front.rank, front.call.group) if front.call else None
    return view is not None and not view.any.members_known and len(view.ranks) == 1


def _all_waiting(
    world: World, fronts: dict[int, Pending], culprits: list[int], alone: set[int]
) -> Finding:
    steps = []
    for rank, front in sorted(fronts.items()):
        assert front.call is not None
        view = world.view(rank, front.call.group)
        place = numbered(view.any, front.call.seq) if view is not None else ""
        unknown = ": who else is in that group is not in this kind of record"
        steps.append(
            f"rank {rank} waits in {call_text(front.call)} {place}{unknown * (rank in alone)}"
        )
    told = f"{'; '.join(steps[:MOST_STEPS])}{'; ...' * (len(steps) > MOST_STEPS)}"
    first = fronts[culprits[0]]
    assert first.call is not None
    view = world.view(culprits[0], first.call.group)
    return Finding(
        kind="deadlock",
        message=f"{AMONG}: {told}",
        headline=AMONG,
        culprits=tuple(culprits),
        victims=tuple(sorted(fronts.keys() - set(culprits))),
        proven=False,
        group=group_evidence(view.any) if view else None,
        seq=first.call.seq,
        ranks={rank: standing(world, rank) for rank in chosen(culprits, fronts)},
        details=steps,
        observable_ns=max(front.wait.since_ns for front in fronts.values()),
    )


MOST_FRONTS, MOST_PENDING = 16, 64
"""The groups of one rank that are compared, by their oldest pending calls."""
_Front = tuple[int, int]
"""A group, by its place in `World.groups`, and the number of its call."""


def opposed_order(world: World) -> list[Candidate]:
    """Returns at most one finding, of the first such pair of calls. Who issued them in the order of
    fewer ranks is to blame; all are where as many did it either way."""
    orders: dict[tuple[_Front, _Front], dict[int, tuple[Call, Call]]] = {}
    for rank, fronts in _fronts(world).items():
        for (first, one), (second, two) in combinations(fronts, 2):
            orders.setdefault((first, second), {})[rank] = (one, two)
    for (first, second), ranks in orders.items():
        others = orders.get((second, first))
        if others:
            return [Candidate(_opposed(world, first, ranks, others))]
    return []


def _opposed(
    world: World,
    first: _Front,
    ranks: dict[int, tuple[Call, Call]],
    others: dict[int, tuple[Call, Call]],
) -> Finding:
    """`ranks` issued the call `first` before the other one of the pair, `others` after it; each has
    its two calls in its own order."""
    view = world.groups[first[0]]
    steps = [_step(world, who) for who in (ranks, others)]
    fewer, more = sorted((ranks, others), key=len)
    culprits = tuple(sorted({*fewer, *(more if len(more) == len(fewer) else ())}))
    waiting = [rank for rank in sorted(world.waiting) if rank not in culprits]
    return Finding(
        kind="deadlock",
        message=(
            "suspected: calls of two groups pend that were issued in opposite order: "
            f"{'; '.join(steps)}"
        ),
        culprits=culprits,
        victims=tuple(waiting),
        proven=False,
        group=group_evidence(view.any),
        seq=first[1],
        ranks={rank: standing(world, rank) for rank in chosen(culprits, waiting)},
        details=steps,
        observable_ns=max(call.issued_ns for call in next(iter(ranks.values()))),
    )


def _fronts(world: World) -> dict[int, list[tuple[_Front, Call]]]:
    """Returns each rank's oldest pending call of each of its groups, in the order in which it
    issued them."""
    found: dict[int, list[tuple[_Front, Call]]] = {}
    for number, view in enumerate(world.groups):
        for rank in view.states:
            call = _front(world, view, rank)
            if call is not None:
                found.setdefault(rank, []).append(((number, call.seq), call))
    for rows in found.values():
        rows.sort(key=lambda row: row[1].number)
        del rows[MOST_FRONTS:]
    return dict(sorted(found.items()))


def _front(world: World, view: GroupView, rank: int) -> Call | None:
    state, record = view.states[rank], world.ranks[rank]
    if state.completed is not None:
        pends = state.completed < state.issued
        return world.collective(rank, view, state.completed) if pends else None
    # Our own record has it by the call; only a GPU comes to them in the order of their issue.
    if record.history is None or view.key not in on_nccl(record):
        return None
    calls = record.history.recent(MOST_PENDING, view.key)
    return next((one for one in calls if one.state is CallState.STARTED), None)


def _step(world: World, ranks: dict[int, tuple[Call, Call]]) -> str:
    """Tells in words in which order these ranks issued the two calls, by the first of them."""
    rank, pair = next(iter(ranks.items()))
    told = []
    for call in pair:
        view = world.view(rank, call.group)
        assert view is not None, "it is the call of a group's view"
        told.append(f"{call_text(call)} {world.place(view, call)}")
    return f"{ranks_text(ranks)} issued {' before '.join(told)}"

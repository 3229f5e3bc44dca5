"""A rank may have issued a call and never complete it: its device, or the network, stands still.
These rules are for a record that has no clock (`Knows.clock`).

Rules:
1. *Never completed*: a rank's oldest pending call of a group is complete on another member: all
   have issued it, and this rank alone has not come to its end. A root may be over with a broadcast
   long before the others come to it: that alone says so only where the call is in front on all who
   are in it. Or, where records tell when calls begin: it has begun on others, and here it has not.
2. *Unended*: where no rank explains why all wait, following who waits for whom ends in calls that
   all have come to, and no rank has completed.
3. A rank in a call that newer ones have overwritten in the record may hold up all others, and of
   messages that cannot be paired any more it is not known which is left out: no rank is named for
   that alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ...record.layout import CallState
from ...record.ops import op_of
from ...record.snapshot import Call
from ...record.wording import call_text, ranks_text, verb
from ..facts.evidence import chosen, of_call, standing
from ..facts.needs import Needs
from ..facts.world import GroupView, World, is_collective, written_before
from ..findings import Finding, group_evidence
from ..limits import Candidate


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
            # A rank that has completed this call, or a later one of the group: nothing but its own
            # device can keep this one in the call.
            seqs = [call.seq]
            if not _is_symmetric(call) and not _is_in_front(world, view, call):
                later = range(call.seq + 1, view.states[rank].issued)
                calls = (world.collective(rank, view, seq) for seq in later)
                seqs = [one.seq for one in calls if one is not None and _is_symmetric(one)]
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


def _is_symmetric(call: Call) -> bool:
    """Whether nobody is over with such a call before all are in it."""
    return op_of(call.signature.op).certain == "all"


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

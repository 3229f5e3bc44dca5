"""Calls that wait for nobody, and do not end: a connection carries nothing.

Rules:
1. All ranks of the call have entered it, or the message's partner has made its own part, and the
   program's own timeout runs out, or `hang_timeout_s` and the time that the bytes may take.
2. The culprits are the ends of the connections that the ranks' errors name (`broken_links`), or
   else all ranks of the group, for nobody knows which.
3. A rank that came just before the time was up, that is stopped or whose GIL is held, explains
   more than any connection.
"""

from __future__ import annotations

from ...record.signature import larger_side_bytes
from ...record.snapshot import Call, Rank
from ...record.wording import call_text, numbered, seconds
from ..facts.evidence import ENTERED, cause_of, chosen, stand
from ..facts.exceptions import (
    Link,
    failed_calls,
    last_exception,
    link_of,
    own_timeout,
    surely_posted,
    timed_out,
)
from ..facts.needs import Needs
from ..facts.world import GroupView, Pending, World, on_nccl
from ..findings import Finding, group_evidence
from ..limits import MOMENT_NS, SECOND_NS, SLOWEST_BYTES_PER_S, Candidate


def stuck(world: World, needs: Needs) -> list[Candidate]:
    """At most one finding, for where nobody is missing (see `late_rank.missing_ranks`)."""
    if world.paused or not world.knows.sequence:
        return []  # ranks that are in one call now need not have come to it as the same one
    seen: set[object] = set()  # of a call that all are in, one rank's view is enough
    for pending in failed_calls(world):
        note = last_exception(world, pending.rank)
        if note is not None and timed_out(note) and not _seen(world, seen, pending):
            view = _entered_by_all(world, needs, pending, before_ns=note.time_ns - MOMENT_NS)
            if view is not None:
                return [Candidate(_finding(world, view, pending, note.time_ns, own=True))]
    seen.clear()
    for pending in sorted(world.all_pending, key=lambda row: (row.wait.since_ns, row.rank)):
        limit_ns = world.limits.hang_ns
        if world.waited_ns(pending.wait) < limit_ns or pending.call is None:
            continue
        if _seen(world, seen, pending):
            continue
        view = _entered_by_all(world, needs, pending, before_ns=world.now_ns - limit_ns)
        if view is None:
            continue
        size_bytes = larger_side_bytes(pending.call.signature) * len(view.ranks)
        limit_ns += int(size_bytes / SLOWEST_BYTES_PER_S * SECOND_NS)
        if world.waited_ns(pending.wait) >= limit_ns:
            since_ns = max(pending.wait.since_ns, world.limits.clock_from_ns) + limit_ns
            hang_ns = world.limits.hang_ns
            links = _messages_stuck_by(world, needs, max(hang_ns // 2, hang_ns - MOMENT_NS))
            return [Candidate(_finding(world, view, pending, since_ns, own=False, links=links))]
    return []


def _messages_stuck_by(world: World, needs: Needs, limit_ns: int) -> set[Link]:
    """The ends of all messages that have stood for so long: a network that comes apart cuts several
    connections at once, and none of them is the first by more than chance."""
    found = set()
    for pending in world.all_pending:
        peer = pending.call.signature.peer if pending.call is not None else None
        if peer is None or world.waited_ns(pending.wait) < limit_ns:
            continue
        if _entered_by_all(world, needs, pending, before_ns=world.now_ns - limit_ns) is not None:
            found.add((peer, pending.rank))
    return found


def _seen(world: World, seen: set[object], pending: Pending) -> bool:
    """Whether this call was looked at for another rank; it is now."""
    call = pending.call
    if call is None or call.signature.peer is not None:
        return False
    key = (id(world.view(pending.rank, call.group)), call.seq)
    if key in seen:
        return True
    seen.add(key)
    return False


def _entered_by_all(
    world: World, needs: Needs, pending: Pending, before_ns: int
) -> GroupView | None:
    """The group of the call, if all that it needs were there before that moment, and are well."""
    call = pending.call
    view = world.view(pending.rank, call.group) if call else None
    if call is None or view is None or len(view.ranks) < 2:
        return None
    if call.signature.peer is not None:
        partner = world.ranks.get(call.signature.peer)
        if partner is None or call.issued_ns > before_ns:
            return None
        if not surely_posted(needs.channels, pending.rank, call):
            return None
        return view if _is_well(world, partner) else None
    if world.absent(view, call.seq):
        return None
    for rank in view.ranks:
        record = world.ranks.get(rank)
        if record is None or not _is_well(world, record) or _issued_ns(record, call) > before_ns:
            return None
    return view


def _is_well(world: World, record: Rank) -> bool:
    """Returns whether the rank could have done its part. One that has ended with a fault counts as
    well: it ended because of this, or else its end is a finding of its own."""
    number = record.rank
    if number in world.unrecorded or world.finished(number):
        return False
    return world.ended(number) or cause_of(world, number) not in ("stopped", "gil_held")


def _issued_ns(record: Rank, call: Call) -> int:
    found = record.history.at(call.group, call.seq) if record.history is not None else None
    return found.issued_ns if found is not None else 0


def _finding(
    world: World,
    view: GroupView,
    pending: Pending,
    observable_ns: int,
    *,
    own: bool,
    links: set[Link] | None = None,
) -> Finding:
    call = pending.call
    assert call is not None
    peer = call.signature.peer
    where = f"{call_text(call)} {numbered(view.any, call.seq)}"
    until = (
        f"until {own_timeout(world, pending.rank, call, observable_ns)}"
        if own
        else f"for {seconds(world.now_ns - pending.wait.since_ns)}"
    )
    if peer is not None:
        links = {(peer, pending.rank), *(links or ())}
        what = f"{until}, though rank {peer} has made its part of the message"
    else:
        # The connections on which nothing came, as the ranks whose time ran out say.
        told = (last_exception(world, rank) for rank in world.eventful)
        named = (link_of(world, note) for note in told if note is not None and timed_out(note))
        links = {link for link in named if link is not None}
        what = f"{until}, though all {len(view.ranks)} ranks have entered it"
    culprits = tuple(sorted({rank for link in links for rank in link} or set(view.ranks)))
    if links:
        pairs = sorted({tuple(sorted(link)) for link in links})
        ends = ", ".join(f"{one} and {other}" for one, other in pairs)
        why = f"nothing comes through between ranks {ends}: look at the network between them"
    elif all(call.group in on_nccl(world.ranks[rank]) for rank in view.ranks):
        why = (
            "a GPU is busy with what was queued before it, or nothing comes through between some "
            "of them: look at those kernels, and at the network"
        )
    else:
        why = "nothing comes through between some of them: look at the network between them"
    if not world.limits.compares and peer is None and len(_ops(world, view, call)) > 1:
        why = "it is not the same call on all of them: debug level INFO tells whose differs"
    victims = tuple(sorted(set(view.ranks) - set(culprits)))
    return Finding(
        kind="missing_rank",
        message=(f"suspected: rank {pending.rank} waits in {where} {what}; {why}"),
        culprits=culprits,
        victims=victims,
        proven=False,
        cause="unknown",
        group=group_evidence(view.any),
        seq=call.seq,
        ranks=stand(world, chosen(culprits, victims), call),
        observable_ns=observable_ns,
        data={ENTERED: True},
    )


def _ops(world: World, view: GroupView, call: Call) -> set[str]:
    """Returns the ops that the ranks call at the place of this call."""
    histories = (world.ranks[rank].history for rank in view.states)
    found = (one.at(call.group, call.seq) for one in histories if one is not None)
    return {one.signature.op for one in found if one is not None}

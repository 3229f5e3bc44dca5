"""A rank has left for good while others wait: that is proven at once.

Rules:
1. Only waits that need the absent rank count (`needs`), and calls that failed without it, as the
   last ones of a thread may that has died of that; not of a thread that its own rank leaves behind.
2. A rank that finished with status 0, or destroyed the group, and had not entered a call of that
   group in which others wait, or have failed, or with which their GPUs were not through when they
   ended: early_exit; for the creation of a group: group_mismatch. For a send or receive:
   unmatched_p2p, unless the two have exchanged messages in both directions before: then their
   numbers of rounds differ, and it is an early_exit.
3. A rank that was killed or raised is not treated here: that *is* the finding.
4. A call that all have made, and in which one lost its connections since another, already through
   with it, left: early_exit, too. A rank that torch's watchdog of NCCL has aborted lost them
   likewise.
5. A rank that finished before the send that it never waited for was through: early_exit.
6. A message with another tag between the same two ranks explains more than the partner's end.
7. A rank that says in a note that it hosts the rendezvous store has finished, and another one lost
   its connection to the store after that, outside of any call of a group: early_exit.
8. A rank that sees such calls fail, catches that, and still makes them when the hang timeout has
   passed since the others finished: early_exit.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterator
from dataclasses import replace

from ...record.layout import Activity, CallState, GroupState
from ...record.notes import (
    CaughtExceptionNote,
    DataExhaustedNote,
    DestroyedNote,
    StoreHostNote,
    UnfinishedNote,
    raised,
)
from ...record.signature import ANY_SOURCE, call_bytes
from ...record.snapshot import Call, Note
from ...record.wording import RankState, at_site, call_text, numbered, printable, ranks_text, verb
from ..facts.channels import Channels
from ..facts.evidence import chosen, doing, last_call, of_call, stand
from ..facts.exceptions import (
    MOST_UNFINISHED,
    UNFINISHED,
    abandoned_calls,
    as_pending,
    calls_of_dead_threads,
    failed_calls,
    has_failed,
    is_communication_error,
    last_exception,
    posted,
)
from ..facts.needs import Need, Needs
from ..facts.world import GroupView, Pending, World, exited_ns, on_nccl
from ..findings import CallIs, Finding, RankEvidence, group_evidence
from ..limits import AFTERMATH_NS, FAILING_NS, MOMENT_NS, SECOND_NS, SLOW_BYTES_PER_S, Candidate
from ..shared_findings import not_created, tag_mismatch
from ..story import step


def departures(world: World, channels: Channels, needs: Needs) -> list[Candidate]:
    """early_exit and unmatched_p2p; one finding for each call, earliest waits first."""
    states = (group.state for view in world.groups for group in view.states.values())
    if not any(map(world.finished, world.eventful)) and GroupState.DESTROYED not in states:
        return []
    found: dict[tuple[object, ...], Candidate] = {}
    too_soon: set[tuple[object, ...]] = set()
    key: tuple[object, ...]
    # Not a rank that itself destroys its groups, while this thread beside waits in one of them: one
    # that listens as long as the program runs, say, and ends with it.
    waits = [
        (pending, needs.of(pending), False)
        for pending in world.all_pending
        if not any(
            row.wait.activity is Activity.DESTROY and row.wait.thread != pending.wait.thread
            for row in world.pending(pending.rank)
        )
    ]
    waits += [(pending, None, True) for pending in failed_calls(world)]
    waits += [(pending, None, True) for pending in calls_of_dead_threads(world)]
    waits += [(pending, None, True) for pending in _failed_messages(world)]
    waits += [(pending, None, True) for pending in abandoned_calls(world, channels)]
    waits += [(pending, None, True) for pending in _repeated_in_vain(world)]
    for pending, need, failed in waits:
        call = pending.call
        if call is None:
            candidate = _never_created(world, needs, pending, need)
            key = (pending.wait.activity, need)
        elif call.signature.peer is not None:
            candidate = _message(world, channels, pending, need, failed=failed)
            key = (call.group, pending.rank, call.signature.peer)
        else:
            view = world.view(pending.rank, call.group)
            key = (id(view), call.seq)
            if view is None or key in found:
                continue
            candidate = _collective(world, view, pending, need, failed=failed)
            if candidate is None and failed:
                candidate = _closed_too_soon(world, view, pending)
                if candidate is not None:
                    too_soon.add(key)
        if candidate:
            found.setdefault(key, candidate)
    leavers = {
        (key[0], rank)
        for key, one in found.items()
        if key not in too_soon
        for rank in one.finding.culprits
    }
    return [
        one
        for key, one in found.items()
        # Who left a call short explains that those who made it ended, too, and closed connections.
        if key not in too_soon or leavers.isdisjoint((key[0], r) for r in one.finding.culprits)
    ]


@step("expected elsewhere")
def expected_elsewhere(world: World, needs: Needs, finding: Finding) -> Finding:
    """An early end, with who waits meanwhile for one of those that wait for the leaver: that one
    may be in the wrong group, and whoever left may have done all that it should."""
    if finding.kind != "early_exit" or finding.group is None:
        return finding
    victims = set(finding.victims)
    for row in world.all_pending:
        call = row.call if row.rank not in victims else None
        if call is None or call.signature.peer is not None or call.group[0] == finding.group.name:
            continue
        need = needs.of(row)
        if need is None or need.any_of or victims.isdisjoint(need.ranks):
            continue
        expected = ranks_text(sorted(victims & need.ranks))
        text = f"meanwhile rank {row.rank} {doing(world, row)}{at_site(row.site)} waits for "
        return replace(finding, details=(*finding.details, f"{text}{expected}"))
    return finding


def _repeated_in_vain(world: World) -> Iterator[Pending]:
    """Collectives that a live rank still makes, and sees fail, after the hang timeout has passed
    since the others left: it catches the error and tries again, and never waits for long enough to
    be seen in one."""
    if world.paused:
        return
    for number, rank in world.ranks.items():
        if world.ended(number) or rank.history is None or rank.calls < 2:
            continue
        last, before = (rank.history.call(rank.calls - back) for back in (1, 2))
        if last is None or before is None or last.group != before.group:
            continue
        view = world.view(number, last.group)
        if view is None or last.signature.peer is not None or before.state is not CallState.FAILED:
            continue
        left = [one for one in world.absent(view, before.seq) if world.finished(one)]
        if left and last.issued_ns - _left_ns(world, left) >= world.limits.hang_ns:
            yield as_pending(world, number, last)


def _failed_messages(world: World) -> Iterator[Pending]:
    """Sends and receives before its last call in which a rank that lost a connection stood: it
    may have made several before it waited for the first."""
    for number in world.eventful:
        rank = world.ranks[number]
        if (
            rank.history is None
            or not has_failed(world, number)
            or not _lost_contact(world, number)
        ):
            continue
        for call in rank.history.recent(MOST_UNFINISHED):
            before_last = call.number < rank.calls - 1
            if before_last and call.signature.peer is not None and call.state in UNFINISHED:
                yield as_pending(world, number, call)


def _never_created(
    world: World, needs: Needs, pending: Pending, need: Need | None
) -> Candidate | None:
    """Returns the finding of a rank that waits in new_group for ranks that have finished."""
    if need is None or pending.wait.activity is not Activity.NEW_GROUP:
        return None
    gone = tuple(sorted(rank for rank in need.ranks if world.finished(rank)))
    if not gone:
        return None
    waiting = tuple(sorted(row.rank for row in world.all_pending if needs.of(row) is need))
    ranks = stand(world, chosen(gone, waiting))
    since = _left_ns(world, list(gone), pending)
    return Candidate(not_created(needs, pending, gone, waiting, ranks, since, proven=True))


def _collective(
    world: World, view: GroupView, pending: Pending, need: Need | None, *, failed: bool
) -> Candidate | None:
    call = pending.call
    assert call is not None
    absent = world.absent(view, call.seq)
    left = sorted(rank for rank in absent if world.left(rank, view))
    if not left:
        return None
    if not failed and not _blocks(world, view, need, left):
        return None
    victims = _others_in(view, call, left)
    where = f"{call_text(call)} {numbered(view.any, call.seq)}"
    if failed:
        tail = f"{ranks_text(victims)} needed it in {where}"
    else:
        tail = f"{ranks_text(victims)} {verb(victims, 'waits', 'wait')} for it in {where}"
    finding = Finding(
        kind="early_exit",
        message=f"{_how_it_left(world, view, left)}, but {tail}",
        culprits=tuple(left),
        victims=victims,
        group=group_evidence(view.any),
        seq=call.seq,
        ranks=_stand(world, left, victims, call),
        details=_parting(world, view, left, victims),
        observable_ns=_left_ns(world, left, pending),
        cause="data_exhausted" if _batches(world, left[0]) is not None else None,
        data={"batches": _batches(world, left[0])},
    )
    return Candidate(finding, _ready_ns(world, left, 0 if failed else finding.observable_ns))


def _lost_contact(world: World, rank: int) -> bool:
    """torch's watchdog of NCCL tells of a lost peer by an abort: no exception is raised."""
    note = last_exception(world, rank)
    if note is not None:
        return is_communication_error(note)
    found = world.ranks[rank]
    return found.process.signal == signals.SIGABRT and bool(on_nccl(found))


def _closed_too_soon(world: World, view: GroupView, pending: Pending) -> Candidate | None:
    """All made the call, but one was through with it first and closed its connections."""
    call = pending.call
    assert call is not None
    if world.absent(view, call.seq) or not _lost_contact(world, pending.rank):
        return None
    left = sorted(rank for rank in view.states if world.left(rank, view))
    victims = _others_in(view, call, left)
    if not left or not victims:
        return None
    finding = Finding(
        kind="early_exit",
        message=(
            f"{_how_it_left(world, view, left)}, while {ranks_text(victims)} "
            f"{verb(victims, 'was', 'were')} still in {call_text(call)} "
            f"{numbered(view.any, call.seq)}: a barrier before the end keeps the connections open"
        ),
        culprits=tuple(left),
        victims=victims,
        group=group_evidence(view.any),
        seq=call.seq,
        ranks=_stand(world, left, victims, call),
        observable_ns=_left_ns(world, left, pending),
    )
    return Candidate(finding, _ready_ns(world, left))


def _stand(
    world: World, left: list[int], victims: tuple[int, ...], call: Call
) -> dict[int, RankEvidence]:
    """Returns the evidence of the ranks: for one that lives on without the group, where it has
    destroyed it; for one that has ended before its GPU was through with the call, where it made
    that; else where it is."""
    found = stand(world, chosen(left, victims), call)
    for rank in left:
        notes = world.notes(rank, DestroyedNote)
        if notes and not world.ended(rank) and not world.pending(rank):
            site, last = notes[-1].site, last_call(world, rank)
            found[rank] = of_call("destroyed the group", last, site, CallIs.LAST)
    for rank in victims:
        history = world.ranks[rank].history if world.notes(rank, UnfinishedNote) else None
        made = history.at(call.group, call.seq) if history is not None else None
        if made is not None:
            found[rank] = of_call("finished before the end of", made, made.site)
    return found


def _blocks(world: World, view: GroupView, need: Need | None, left: list[int]) -> bool:
    if need is None:
        return False
    if need.any_of:
        return all(world.left(rank, view) or world.ended(rank) for rank in need.ranks)
    return not need.ranks.isdisjoint(left)


def _others_in(view: GroupView, call: Call, left: list[int]) -> tuple[int, ...]:
    present = [
        rank for rank, group in view.states.items() if group.issued > call.seq and rank not in left
    ]
    return tuple(sorted(present))


def _how_it_left(world: World, view: GroupView, left: list[int]) -> str:
    who = ranks_text(left)
    made = sorted({view.states[rank].issued for rank in left if rank in view.states})
    calls = f"after {made[0]} call{'s' if made[0] != 1 else ''}" if len(made) == 1 else "early"
    how = "finished" if all(world.ended(rank) for rank in left) else "destroyed the group"
    batches = _batches(world, left[0])
    if batches is not None:
        counted = f" after {batches} batches" if batches >= 0 else ""
        return f"{who} ran out of data{counted} and {how} {calls}"
    return f"{who} {how} {calls} in the group"


def _batches(world: World, rank: int) -> int | None:
    """Returns how many batches the rank's data gave before it ran out; -1: unknown; None: it did
    not run out."""
    notes = world.notes(rank, DataExhaustedNote)
    told = DataExhaustedNote.read(notes[-1].data) if notes else None
    return told.batches if told else None


def _left_ns(world: World, left: list[int], pending: Pending | None = None) -> int:
    """Since when what one waits for cannot come: from when the others began to leave, for who is
    told of that fails at once, while their processes may take long to end."""
    times = [exited_ns(world.ranks[rank]) or 0 for rank in left if world.ended(rank)]
    return max([pending.wait.since_ns if pending is not None else 0, *times])


def _ready_ns(world: World, left: list[int], waits_since_ns: int = 0) -> int:
    """Until when one of them, that has destroyed the group and lives, may yet end of a test that
    has failed: then that is why it left. Or who waits for them, since `waits_since_ns`, may yet be
    refused by its backend, whose connections close: what a program catches is its own business."""
    alive = (world.ranks[rank] for rank in left if not world.ended(rank))
    failed = [note.time_ns for rank in alive for note in CaughtExceptionNote.among(rank.notes)]
    of_tests_ns = max(failed) + FAILING_NS if failed else 0
    refused_ns = waits_since_ns + world.limits.settle_ns if waits_since_ns else 0
    return max(of_tests_ns, refused_ns)


def _parting(
    world: World, view: GroupView, left: list[int], victims: tuple[int, ...]
) -> tuple[str, ...]:
    """The last call of the group that the leaver made, and what the others made after it."""
    first = left[0]
    history, state = world.ranks[first].history, view.states.get(first)
    if history is None or state is None:
        return ()
    texts = []
    destroyed = world.notes(first, DestroyedNote)
    if len(destroyed) == 1 and world.pending(first):  # its row says what it waits for since
        texts.append(f"rank {first} destroyed the group{at_site(destroyed[-1].site)}")
    last = history.at(view.key, state.issued - 1) if state.issued else None
    if last is not None:
        made = f"{call_text(last)} #{last.seq}{at_site(last.site)}"
        texts.append(f"the last call of rank {first} in the group: {made}")
    for rank in victims:
        others = world.ranks[rank].history
        after = others.at(view.key, state.issued) if others else None
        if after is not None:
            made = f"{call_text(after)} #{after.seq}{at_site(after.site)}"
            texts.append(f"what rank {rank} called after it: {made}")
            break
    return tuple(texts)


def _message(
    world: World, channels: Channels, pending: Pending, need: Need | None, *, failed: bool
) -> Candidate | None:
    call = pending.call
    assert call is not None
    peer = call.signature.peer
    view = world.view(pending.rank, call.group)
    if view is None or peer is None:
        return None
    if (failed or need is None) and peer != ANY_SOURCE and posted(channels, pending.rank, call):
        return _never_arrived(world, channels, view, pending)
    # A receive from any source with nothing on its way to it may have failed at the first rank that
    # left, where another backend has it wait until all have.
    if (failed and peer == ANY_SOURCE) and not (
        channels.lacks(pending.rank, call) and _lost_contact(world, pending.rank)
    ):
        return None
    if not failed and need is None:
        return None
    partners = [peer] if peer != ANY_SOURCE else sorted(set(view.ranks) - {pending.rank})
    if not all(world.left(rank, view) for rank in partners):
        return None
    rank = pending.rank
    tags = channels.other_tags(rank, call) if peer != ANY_SOURCE else []
    if tags:
        return Candidate(tag_mismatch(world, pending, peer, tags, (), proven=True))
    fewer = channels.sent_less(rank, call, partners) if peer == ANY_SOURCE else partners
    culprits = tuple(fewer) or (rank,)
    victims = tuple(one for one in (rank, *partners) if one not in culprits)
    partner = f"rank {peer}" if peer != ANY_SOURCE else "any other rank"
    word = "receive" if call.signature.op == "send" else "send"
    gone = f"{ranks_text(partners)} {verb(partners, 'has', 'have')} finished without it"
    rounds = _rounds(channels, rank, call)
    text = f"{call_text(call)} for a {word} of {partner} (message #{call.seq})"
    message = f"rank {rank} {'was' if failed else 'waits'} in {text}, but {gone}"
    if peer == ANY_SOURCE and fewer:
        message += f"; {ranks_text(fewer)} sent less than the others"
    details: tuple[str, ...] = ()
    if rounds:
        if last := last_call(world, peer):
            details = (f"the last call of rank {peer}: {call_text(last)}{at_site(last.site)}",)
        made = world.ranks[peer].calls
        how = "finished" if world.ended(peer) else "destroyed the group"
        waits = "needed it in" if failed else RankState.WAITS_IN
        message = (
            f"rank {peer} {how} after {made} call{'s' if made != 1 else ''}, and {rounds} messages "
            f"with rank {rank}, but rank {rank} {waits} {text}"
        )
    finding = Finding(
        kind="early_exit" if rounds else "unmatched_p2p",
        message=message,
        culprits=culprits,
        victims=victims,
        group=group_evidence(view.any),
        seq=call.seq,
        ranks=stand(world, chosen(culprits, victims), call),
        details=details,
        observable_ns=_left_ns(world, partners, pending),
    )
    return Candidate(finding, _ready_ns(world, partners, 0 if failed else finding.observable_ns))


def _rounds(channels: Channels, rank: int, call: Call) -> int:
    """Returns how many messages the two ranks of the call have exchanged so far; 0 where they all
    went one way, or none with this one's direction and tag."""
    peer = call.signature.peer
    if peer in (None, ANY_SOURCE) or call.seq == 0:
        return 0
    both = ((rank, peer), (peer, rank))
    counts = [
        sum(
            min(channels.sent(key), channels.received(key))
            for key in channels.sends
            if key[:3] == (call.group, *pair)
        )
        for pair in both
    ]
    return sum(counts) if all(counts) else 0


def _never_arrived(
    world: World, channels: Channels, view: GroupView, pending: Pending
) -> Candidate | None:
    """The partner has sent it, but was not through with that, and never waited for it, when it
    finished. What the network has taken from it may still arrive: that takes its time."""
    call = pending.call
    assert call is not None
    peer = call.signature.peer
    channel = channels.sends.get(channels.key_of(pending.rank, call))
    if peer is None or channel is None or call.signature.op != "recv" or not world.finished(peer):
        return None
    if not channels.strict(channels.key_of(pending.rank, call)):
        return None
    history = world.ranks[peer].history
    sent = history.message(channel, call.seq) if history else None
    if sent is None or sent.state not in (CallState.ISSUED, CallState.STARTED):
        return None
    rank, left_ns = pending.rank, _left_ns(world, [peer], pending)
    finding = Finding(
        kind="early_exit",
        message=(
            f"rank {peer} finished without waiting for its {call_text(sent)} (message "
            f"#{call.seq}){at_site(sent.site)}, which rank {rank} has not received in full in "
            f"{call_text(call)}: wait() for the handle before the end"
        ),
        culprits=(peer,),
        victims=(rank,),
        group=group_evidence(view.any),
        seq=call.seq,
        ranks={
            peer: RankEvidence("finished, had sent", call_text(sent), sent.site),
            **stand(world, [rank], call),
        },
        observable_ns=left_ns,
    )
    arriving_ns = AFTERMATH_NS + int(call_bytes(sent.signature) / SLOW_BYTES_PER_S * SECOND_NS)
    return Candidate(finding, left_ns + arriving_ns)


STORE_ERRORS = frozenset({"DistNetworkError", "DistStoreError", "StoreFailed"})


def store_hosts_that_left(world: World) -> list[Candidate]:
    """At most one finding for each host."""
    found = []
    for host in world.eventful:
        record = world.ranks[host]
        if not world.finished(host) or not world.notes(host, StoreHostNote):
            continue
        ended_ns = record.process.ended_ns or record.heartbeat_ns
        lost = {
            rank: note
            for rank in world.eventful
            if rank != host and (note := _lost_store(world, rank, ended_ns)) is not None
        }
        if lost:
            found.append(Candidate(_finding(world, host, lost)))
    return found


def _lost_store(world: World, rank: int, since_ns: int) -> Note | None:
    note = last_exception(world, rank)
    if note is None or note.time_ns < since_ns - MOMENT_NS or raised(note).type not in STORE_ERRORS:
        return None
    call = last_call(world, rank)
    return note if call is None or call.state is CallState.COMPLETED else None


def _finding(world: World, host: int, lost: dict[int, Note]) -> Finding:
    victims = tuple(sorted(lost))
    first = min(lost, key=lambda rank: lost[rank].time_ns)
    note = lost[first]
    return Finding(
        kind="early_exit",
        message=(
            f"rank {host} finished, and the store that it hosts ended with it, but "
            f"rank {first} needed the store{at_site(note.site)}: {printable(note.message, 200)}; "
            f"let rank {host} leave last, after a barrier"
        ),
        culprits=(host,),
        victims=victims,
        ranks=stand(world, chosen((host,), victims)),
        observable_ns=note.time_ns,
        cause="store",
    )

"""Deaths and uncaught exceptions, each as what it is; which of them is the cause, `folding` says.

*Ranks that wrap different models*: DistributedDataParallel compares how many parameters they have,
and raises on all ranks, on the right ones as well as on the wrong one. Which is which, a vote says.

*Threads that died* of an exception while their rank lives on: Python prints it and goes on. Where
others wait for a rank in a call of a group, and the rank's last call in that group was made by a
thread that an exception has ended since, nobody is left to make the call. It is reported as that
exception after a short while, since a program may start another thread in its place.

A rank also fails *because* another failed: gloo says "Connection closed by peer" or aborts, MPI
ends the process with a status, the launcher sends SIGTERM. Such endings are `weak`: they count only
where nothing else explains them.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import replace

from ...record.dispute import Vote, vote
from ...record.exits import POLITE_SIGNALS
from ...record.layout import Activity, Phase
from ...record.notes import FindingRaisedNote, LeftCallNote, RaisedNote, ThreadExceptionNote, raised
from ...record.snapshot import Call, Note, Rank
from ...record.wording import at_site, printable, ranks_text, spans, verb
from ..facts.evidence import chosen, doing, ending_text, members_of_last_call, stand, standing
from ..facts.exceptions import broken, is_communication_error, last_exception, link_of
from ..facts.needs import Needs
from ..facts.world import GroupView, Pending, World, exit_status, exited_ns
from ..findings import Finding, RankEvidence, group_evidence
from ..limits import ANOTHER_NS, SECOND_NS, TOGETHER_NS, Candidate
from ..story import step

WEAK_SIGNALS = POLITE_SIGNALS | {signals.SIGABRT}


def endings(world: World) -> list[Candidate]:
    """Every rank that died or raised, but for those that this tool itself stopped."""
    found = []
    killed: list[Rank] = []
    notes = {one: note for one in world.eventful if (note := last_exception(world, one))}
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, note in notes.items():
        alike.setdefault(_mistake(note), []).append(number)
    free = (one for one in world.ranks if not (world.ended(one) or world.pending(one)))
    more = any(one not in notes for one in free)
    for number in world.eventful:
        rank = world.ranks[number]
        if world.notes(number, FindingRaisedNote):
            continue
        if number in notes:
            same = tuple(alike[_mistake(notes[number])])
            found.append(_raised(world, rank, notes[number], same, more))
        elif not world.ended(number):
            continue
        elif rank.process.replaced:
            # Its peers lose a connection by it, and have not failed either.
            found.append(replace(_ended(world, [rank], weakness=0), excused=True))
        elif rank.process.asked and not _waited_for(world, number):
            continue  # the end of a helper of a rank, say, that has a world of its own
        elif rank.process.signal is not None and rank.process.signal not in WEAK_SIGNALS:
            killed.append(rank)
        elif rank.process.signal is not None or exit_status(rank):
            found.append(_ended(world, [rank], weakness=_weakness(world, rank)))
        # An end that was not recorded is no fault by itself: a rank must be left that may need it.
        elif (
            exit_status(rank) is None
            and rank.phase < Phase.EXITING
            and any(not world.finished(other) for other in world.ranks if other != number)
        ):
            found.append(_ended(world, [rank], weakness=1))
    return found + _together(world, killed)


def _weakness(world: World, rank: Rank) -> int:
    """MPI's errors are fatal: over a network it ends who has lost a peer in the middle of a call.
    That is weaker than an abort of that peer, which alone might be another's consequence."""
    if rank.process.signal is not None:
        return 1
    in_call = any(wait.activity is Activity.IN_CALL for wait in rank.waits)
    by_mpi = in_call and any("mpi" in group.backend for group in rank.groups.values())
    if not by_mpi:
        return 0
    aborted = (one.process.signal == signals.SIGABRT for one in world.ranks.values())
    return 2 if any(aborted) else 0


def _waited_for(world: World, number: int) -> bool:
    """Another rank waits for something, or has failed."""
    return any(pending.rank != number for pending in world.all_pending) or any(
        last_exception(world, other) is not None for other in world.ranks if other != number
    )


def _together(world: World, killed: list[Rank]) -> list[Candidate]:
    found: list[Candidate] = []
    batch: list[Rank] = []
    for rank in sorted(killed, key=lambda rank: (rank.process.signal or 0, _ended_ns(world, rank))):
        if batch and (
            batch[0].process.signal != rank.process.signal
            or _ended_ns(world, rank) - _ended_ns(world, batch[0]) > TOGETHER_NS
        ):
            found.append(_ended(world, batch, weakness=0))
            batch = []
        batch.append(rank)
    if batch:
        found.append(_ended(world, batch, weakness=0))
    return found


def _ended_ns(world: World, rank: Rank) -> int:
    return exited_ns(rank) or rank.heartbeat_ns or world.now_ns


def _ended(world: World, dead: list[Rank], *, weakness: int) -> Candidate:
    culprits = tuple(sorted(rank.rank for rank in dead))
    first = dead[0]
    ending = ending_text(world, first.rank)
    was = ""
    if first.process.signal is not None:
        was = verb(culprits, "was ", "were ")
    elif exit_status(first) is None:
        was = verb(culprits, "is ", "are ")
    where = standing(world, culprits[0])
    doing = f"; its last call was {where.call}" if where.call and len(culprits) == 1 else ""
    others = tuple(sorted(set(world.ranks) - set(culprits)))
    observable = min(_ended_ns(world, rank) for rank in dead)
    cause = "oom" if first.process.oom_killed else None
    finding = Finding(
        kind="rank_died",
        message=f"{ranks_text(culprits)} {was}{ending}{at_site(where.location)}{doing}",
        culprits=culprits,
        victims=others,
        ranks=stand(world, chosen(culprits, others)),
        observable_ns=observable,
        cause=cause,
        data={
            "signal": first.process.signal,
            "exit_code": exit_status(first),
            "oom_killed": first.process.oom_killed,
        },
    )
    ready_ns = observable + (world.limits.settle_ns if weakness else 0)
    return Candidate(finding, ready_ns, weakness)


def _raised(world: World, rank: Rank, note: Note, same: tuple[int, ...], more: bool) -> Candidate:
    """`same`: the ranks that have raised it; `more`: others may be about to."""
    error = raised(note)
    if error.own_fault:
        return _failed_ourselves(world, rank, note)
    invalid = error.invalid_argument is True
    weakness = 2 if not invalid and is_communication_error(note) else 0
    link = link_of(world, note) if weakness else None
    culprits = (rank.rank,) if link is None else tuple(sorted(link))
    size = max(len(world.ranks), world.size)
    everybody = note.site is not None and not weakness and len(same) == size > 1
    if invalid or everybody:
        culprits = same
    models = other_models(world, rank.rank, note)
    if models is not None:
        culprits = models.culprits
    failed = _failed(world, rank.rank, error.failed or ())
    culprits = failed or culprits
    others = tuple(sorted(set(world.ranks) - set(culprits)))
    evidence = stand(world, chosen(culprits, others))
    who = ranks_text(culprits if invalid else (rank.rank,))
    who = f"all {len(same)} ranks" if everybody and culprits == same else who
    message = f"{who} raised {printable(note.message)}{at_site(note.site)}"
    if models is not None:
        message = f"{models_text(models)}: {message}"
    if failed and rank.rank not in failed:
        message = f"{ranks_text(failed)} failed: {message}"
    finding = Finding(
        kind="invalid_argument" if invalid else "rank_exception",
        message=message if link is None else f"{broken(note, link)}: {message}",
        culprits=culprits,
        victims=others,
        ranks=evidence,
        details=() if culprits == same and len(same) > 1 else _alike(world, rank, note),
        observable_ns=note.time_ns,
        data=dict(note.data),
    )
    ready_ns = note.time_ns
    if more and not weakness:
        ready_ns += TOGETHER_NS
    if models is not None:
        ready_ns += world.limits.hold_ns(models)
    if weakness:
        # How a rank ends that is about to, by itself, is known within 20 s, and may explain the
        # rest.
        leaving = any(
            one.phase >= Phase.EXITING and not world.ended(n) and not last_exception(world, n)
            for n, one in world.ranks.items()
        )
        ready_ns += 20 * SECOND_NS if leaving else world.limits.settle_ns
    return Candidate(finding, ready_ns, weakness)


def _failed_ourselves(world: World, rank: Rank, note: Note) -> Candidate:
    others = tuple(sorted(set(world.ranks) - {rank.rank}))
    finding = Finding(
        kind="tool_error",
        message=f"distdebug itself failed in rank {rank.rank}, with {printable(note.message)}"
        f"{at_site(note.site)}; the program is not to blame",
        culprits=(rank.rank,),
        victims=others,
        ranks=stand(world, chosen((rank.rank,), others)),
        details=(
            "please report it, with the traceback below and the versions in run.json",
            "the program runs as it is without distdebug",
        ),
        observable_ns=note.time_ns,
        data=dict(note.data),
    )
    return Candidate(finding, note.time_ns, 0)


def _failed(world: World, rank: int, numbers: Sequence[int]) -> tuple[int, ...]:
    """The ranks that an exception says have failed, and for which all raise it."""
    members = members_of_last_call(world, rank) if numbers else None
    if members is None or not 0 <= min(numbers) <= max(numbers) < len(members):
        return ()
    return tuple(sorted(members[number] for number in numbers))


def _mistake(note: Note) -> tuple[object, ...]:
    """Equal for exceptions of one type on one line, unless one of them came of another's end."""
    invalid = raised(note).invalid_argument is True
    return note.site, raised(note).type, invalid, not invalid and is_communication_error(note)


def _alike(world: World, rank: Rank, note: Note) -> tuple[str, ...]:
    """Other ranks that raised the same: usually the same cause on all of them."""
    same = [
        other
        for other in world.ranks
        if other != rank.rank
        and (found := last_exception(world, other)) is not None
        and found.message == note.message
    ]
    if not same:
        return ()
    return (
        (f"{ranks_text(same)} raised the same ({spans(same)})",)
        if len(same) > 8
        else (f"{ranks_text(same)} raised the same",)
    )


_COUNTS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
"""torch's words, in the numbers of the group."""


def other_models(world: World, rank: int, note: Note) -> Vote[int] | None:
    """Returns how many parameters each rank has, as a vote, where the rank's exception is about
    that and they differ."""
    members = members_of_last_call(world, rank)
    if _COUNTS.search(note.message) is None or members is None:
        return None
    counts: dict[int, int] = {}
    for teller in members:
        theirs = last_exception(world, teller) if teller in world.ranks else None
        counted = _COUNTS.search(theirs.message) if theirs is not None else None
        if counted is None:
            continue
        own, own_count, other, other_count = map(int, counted.groups())
        if max(own, other) < len(members):
            counts[members[own]] = own_count
            counts[members[other]] = other_count
    answers: dict[int, list[int]] = {}
    for member, count in counts.items():
        answers.setdefault(count, []).append(member)
    return vote(answers, len(members) - len(counts)) if len(answers) > 1 else None


def models_text(result: Vote[int]) -> str:
    """`ranks wrap different models: rank 2 has 3 parameters, ranks 0,1 have 4 parameters`."""
    parts = [
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {count} parameters"
        for count, ranks in reversed(result.parties)
    ]
    return f"ranks wrap different models: {', '.join(parts)}"


def lost_threads(world: World, needs: Needs) -> list[Candidate]:
    """Returns one finding for each rank whose dead thread others wait for."""
    dead = {rank: notes for rank in world.eventful if (notes := deaths(world, rank))}
    if not dead:
        return []
    found: dict[int, Candidate] = {}
    for pending in world.all_pending:
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


@step("exceptions")
def with_exceptions(world: World, finding: Finding) -> Finding:
    """The finding, with the threads that its culprits lost before it, and with what they, and the
    others in it, had caught: what they did after that may be the consequence."""
    lost = [
        f"before that, {_thread(note, whose='')} of rank {rank} died of "
        f"{printable(note.message, 200)}{at_site(note.site)}"
        for rank in finding.culprits[:4]
        if rank in world.ranks
        for note in deaths(world, rank)[:1]
        if note.time_ns <= finding.observable_ns and note.message != finding.data.get("message")
    ]
    found: dict[str, list[int]] = {}
    for rank in dict.fromkeys((*finding.culprits, *finding.ranks)):
        left = world.notes(rank, LeftCallNote) if rank in world.ranks else []
        left = [note for note in left if note.time_ns <= finding.observable_ns]
        told = LeftCallNote.read(left[-1].data) if left else None
        if told and _went_on(world.ranks[rank], left[-1], told.call, finding.observable_ns):
            said = printable(left[-1].message.removeprefix(told.type).removeprefix(": "), 200)
            text = f"raised {printable(told.type, 80)} in {printable(told.function, 80)}"
            text += f"{at_site(left[-1].site)} before this, and went on{said and f' ({said})'}"
            found.setdefault(text, []).append(rank)
    caught = [f"{ranks_text(ranks)} {text}" for text, ranks in found.items()][:MOST_LINES]
    details = (*lost, *finding.details, *caught)
    return replace(finding, details=details) if lost or caught else finding


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


_RAISED = tuple(kind.KIND for kind in RaisedNote.__subclasses__())
MOST_LINES = 4


def _went_on(rank: Rank, note: Note, call: int, now_ns: int) -> bool:
    """Whether the rank has made another call since, or runs for so long that the exception cannot
    be on its way out; and neither ended, nor was cleaning up, for that same exception."""
    if rank.calls <= call and (now_ns - note.time_ns < SECOND_NS or rank.phase >= Phase.EXITING):
        return False
    ends = (one.message for one in rank.notes if one.kind in _RAISED)
    return not any(note.message in text for text in ends)

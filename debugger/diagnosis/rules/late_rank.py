"""A rank is alive but late: it is noticed after `notice_after_s`, suspected after
`hang_timeout_s`.

Rules:
1. The call with the longest wait counts, from the moment its first rank began to wait; for the
   suspicion of an initialisation from the moment its last rank did (as `joining` names the absent).
2. A rank that is absent only because it waits itself is not the culprit: its own wait is followed
   to the rank at the root, which computes, is stopped, or waits for something else. A thread that
   has nothing to do with the call may run meanwhile: what counts is the one that makes the calls of
   its group.
3. A rank stopped inside a call holds up the others just as well.
4. The program's own timeout may end the wait earlier: then the rank is suspected at that moment.
5. At a breakpoint no rank is late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ...record.exits import POLITE_SIGNALS
from ...record.layout import FOR_RANKS, Activity, CallState, Phase
from ...record.snapshot import Call, CallSite, Note
from ...record.wording import CAUSES, RankState, at_site, printable, ranks_text, seconds, verb
from ..facts.evidence import ENTERED, cause_of, chosen, doing, last_call, stand, standing
from ..facts.exceptions import (
    failed_calls,
    gave_up,
    is_communication_error,
    last_exception,
    last_to_come,
    own_timeout,
    surely_posted,
    timed_out,
)
from ..facts.needs import Needs
from ..facts.world import STOPPED, GroupView, Pending, World
from ..findings import CallIs, Finding, RankEvidence, group_evidence
from ..limits import Candidate
from ..story import step


@dataclass(frozen=True, slots=True)
class Late:
    """The ranks that a wait hangs on, and the ranks that wait in that call."""

    pending: Pending
    culprits: tuple[int, ...]
    victims: tuple[int, ...]


def missing_ranks(world: World, needs: Needs) -> list[Candidate]:
    """At most one finding: the longest wait's."""
    found = _own_timeout(world, needs)
    if found or world.paused:
        return found
    waiting = world.engaged(Activity.INIT)
    last = last_to_come(waiting) if waiting else None
    all_there = last is not None and world.waited_ns(last) >= world.limits.hang_ns
    late = latest(world, needs, world.limits.hang_ns, joins=all_there)
    if late:
        wait = last if last is not None and _joins(late.pending) else late.pending.wait
        since = max(wait.since_ns, world.limits.clock_from_ns)
        return [Candidate(_finding(world, late, since + world.limits.hang_ns))]
    return _all_in_store(world)


def latest(world: World, needs: Needs, longer_than_ns: int, *, joins: bool = True) -> Late | None:
    """The longest wait above the limit that hangs on a rank which could act; `joins`: also one in
    an initialisation."""
    rows = [
        pending
        for pending in world.all_pending
        if world.waited_ns(pending.wait) >= longer_than_ns and (joins or not _joins(pending))
    ]
    seen: set[int] = set()
    rootless: set[int] = set()
    for pending in sorted(rows, key=lambda row: (row.wait.since_ns, row.rank)):
        need = needs.of(pending)
        # All have come to it: it hangs on nobody but on who is stopped within it.
        if id(need) in seen or (need is None and not world.stopped):
            continue
        if _in_background(world, pending, longer_than_ns):
            continue  # asked late: it reads the record, and of many ranks few come to that
        if need is not None:
            seen.add(id(need))
        if id(pending.wait) in rootless:
            continue
        culprits = _roots(world, needs, pending, rootless)
        if culprits:
            return Late(pending, culprits, _waiting_with(world, pending, culprits))
    return None


def _in_background(world: World, pending: Pending, longer_than_ns: int) -> bool:
    """Whether a thread beside the main thread waits while its rank goes on with other calls: for
    the word to stop, say, which comes when the training is over."""
    record = world.ranks[pending.rank]
    if pending.call is None or pending.wait.thread == record.pid or record.history is None:
        return False
    newest = record.history.recent(1)
    since_ns = max(pending.wait.since_ns, world.now_ns - longer_than_ns)
    return bool(newest) and newest[-1].issued_ns > since_ns


def _joins(pending: Pending) -> bool:
    return pending.wait.activity is Activity.INIT


def _roots(
    world: World, needs: Needs, start: Pending, rootless: set[int] | None = None
) -> tuple[int, ...]:
    """The ranks that could act, behind all that this wait hangs on. Where there is none, and none
    by any other way through the same waits, their ids join `rootless`: of a cycle of 2,048 ranks
    each would be walked from each."""
    roots: set[int] = set()
    seen = {start.rank}
    walked, todo = [], [start]
    while todo:
        pending = todo.pop()
        walked.append(pending)
        if needs.of(pending) is None:
            roots |= _stopped_inside(world, pending)
            continue
        for rank in needs.likely(pending) - seen:
            seen.add(rank)
            is_root = _is_root(world, rank, pending)
            if is_root:
                roots.add(rank)
            elif is_root is not None:
                todo.extend(world.pending(rank))
    if not roots and rootless is not None:
        links = ((rank, one) for one in walked if needs.of(one) for rank in needs.likely(one))
        if not any(_is_root(world, rank, one) for rank, one in links):
            rootless.update(id(one.wait) for one in walked)
    return tuple(sorted(roots))


def _is_root(world: World, rank: int, wanted: Pending) -> bool | None:
    """Whether the rank could end this wait for it; False where it waits itself, and None where it
    is not known to wait or to act."""
    if rank in world.unrecorded:
        return None
    is_init = wanted.wait.activity is Activity.INIT
    if rank not in world.ranks:
        return True if world.size and not is_init else None
    if world.ended(rank) or (is_init and gave_up(world, rank)):
        return None
    return _acts(world, rank, world.pending(rank), wanted)


def _acts(world: World, rank: int, waits: Sequence[Pending], wanted: Pending) -> bool:
    """The rank itself is what the others wait for in `wanted`, not somebody behind it."""
    if not waits or world.ranks[rank].process.state in STOPPED:
        return True
    if any(pending.wait.activity not in FOR_RANKS for pending in waits):
        return True
    guessed = sum(pending.wait.guessed for pending in waits)  # these count as free as well
    if world.ranks[rank].free_threads <= guessed:
        return False
    return not _awaited_thread_waits(world, rank, waits, wanted)


def _awaited_thread_waits(
    world: World, rank: int, waits: Sequence[Pending], wanted: Pending
) -> bool:
    """Whether the thread that should make the call waits itself, while others of the rank run, such
    as one that writes metrics: the thread that has made the group's calls before, else the main
    thread."""
    record, call = world.ranks[rank], wanted.call
    main = record.pid  # the main thread's id is the process's
    if call is not None and call.signature.peer is None and record.history is not None:
        before = record.history.recent(1, call.group)
        if before:
            thread = before[-1].thread
            made = [row for row in waits if row.call and row.call.thread == thread]
            # Another thread may wait for the handle of an asynchronous call.
            return any(row.wait.thread == main or not row.call.is_async for row in made if row.call)
    return any(row.wait.thread == main for row in waits)


def _stopped_inside(world: World, pending: Pending) -> Set[int]:
    view = world.view(pending.rank, pending.call.group) if pending.call else None
    if view is None or pending.call is None:
        return set()
    peer = pending.call.signature.peer  # a message holds up its two ends alone
    inside = set(view.states) if peer is None else {peer}
    return world.stopped & inside if world.stopped else set()


def _waiting_with(world: World, pending: Pending, culprits: tuple[int, ...]) -> tuple[int, ...]:
    call = pending.call
    view = world.view(pending.rank, call.group) if call else None
    if call is None or view is None or call.signature.peer is not None:
        alike = [
            other.rank
            for other in world.all_pending
            if call is None and other.wait.activity is pending.wait.activity
        ]
        return tuple(sorted({pending.rank, *alike} - set(culprits)))
    inside = (rank for rank, group in view.states.items() if group.issued > call.seq)
    return tuple(sorted(set(inside) - set(culprits)))


def _finding(world: World, late: Late, observable_ns: int, *, timed_out: bool = False) -> Finding:
    pending, culprits = late.pending, late.culprits
    call = pending.call
    view = world.view(pending.rank, call.group) if call else None
    waited = seconds(world.now_ns - pending.wait.since_ns)
    cause = cause_of(world, culprits[0])
    timeout = own_timeout(world, pending.rank, call, observable_ns)
    since = f"until {timeout}" if timed_out else f"for {waited}"
    message = (
        f"suspected: {ranks_text(culprits)} {verb(culprits, 'has', 'have')} not come "
        f"{since}, while {ranks_text(late.victims)} {verb(late.victims, 'waits', 'wait')} "
        f"{doing(world, pending)}; {_whereabouts(world, culprits, cause)}"
    )
    return Finding(
        kind="missing_rank",
        message=message,
        culprits=culprits,
        victims=late.victims,
        missing=tuple(rank for rank in culprits if rank not in world.ranks),
        proven=False,
        cause=cause,
        group=group_evidence(view.any) if view else None,
        seq=call.seq if call else None,
        ranks=stand(world, chosen(culprits, late.victims), call)
        | {rank: own for rank in culprits if (own := _outside_calls(world, rank))},
        observable_ns=observable_ns,
    )


def _outside_calls(world: World, rank: int) -> RankEvidence | None:
    """Returns the evidence of the main thread, if it is in no wait while another thread of the rank
    is: others wait for the main one."""
    record = world.ranks.get(rank)
    waits = world.pending(rank)
    if record is None or record.free_threads <= 0 or record.location is None or not waits:
        return None
    if any(row.wait.thread == record.pid for row in waits):  # the main thread's id is the process's
        return None
    return RankEvidence(RankState.RUNS, None, record.location)


def _whereabouts(world: World, culprits: tuple[int, ...], cause: str) -> str:
    rank = culprits[0]
    own = _outside_calls(world, rank)
    where = standing(world, rank)
    state = where.state
    if where.call is not None and where.call_is is CallIs.OBJECT:
        state += f" {where.call}"
    if own is not None:
        state = f"{own.state}{at_site(own.location)}, while a thread of it {state}"
    what = CAUSES.get(cause, state)
    if cause == "store":
        what = state if "store" in state else what
    return f"rank {rank}: {what}{at_site(where.location)}"


@step("lock")
def refine_cause(finding: Finding, states: Mapping[int, RankState]) -> Finding:
    """The finding with cause `lock` where the first culprit waits for one.

    `states` is what the stacks show of the thread that stands for each rank. A finding of another
    kind, or with a cause that the stack cannot better, is returned as it is.
    """
    if finding.kind != "missing_rank" or finding.cause not in ("user_code", "unknown"):
        return finding
    if finding.culprits[0] not in states or finding.data.get(ENTERED):
        return finding
    locked = states[finding.culprits[0]] is RankState.WAITS_FOR_LOCK
    finding = replace(finding, cause="lock" if locked else "user_code")
    for rank in finding.culprits:
        if states.get(rank) is RankState.WAITS_FOR_LOCK:
            finding = restated(finding, rank, RankState.WAITS_FOR_LOCK)
    return finding


@step("state")
def restated(finding: Finding, rank: int, state: str) -> Finding:
    """The finding with what the rank does, where its own record says no more than that it is in no
    call. A message about several ranks keeps its words where it does not say what each of them
    does."""
    known = finding.ranks.get(rank, RankEvidence(RankState.RUNS))
    before, named, after = finding.message.partition(f"rank {rank}: {known.state}")
    if known.state not in (RankState.RUNS, RankState.WAITS_FOR_LOCK):
        named = ""
    else:
        ranks = {**finding.ranks, rank: replace(known, state=state)}
        finding = replace(finding, ranks=ranks)
    if named:
        return replace(finding, message=f"{before}rank {rank}: {state}{after}")
    alone = len(finding.culprits) == 1
    return replace(finding, message=f"{finding.message} ({state})") if alone else finding


@step("place")
def placed(finding: Finding, rank: int, site: CallSite) -> Finding:
    """The finding with this line as where the rank stands, in its words as well: a process whose
    GIL is held has last said so at another line."""
    known = finding.ranks.get(rank, RankEvidence(state="absent"))
    said, message = at_site(known.location), finding.message
    before, named, after = message.rpartition(f"rank {rank}: ")
    if named and said and after.endswith(said):
        message = f"{before}{named}{after.removesuffix(said)}{at_site(site)}"
    ranks = {**finding.ranks, rank: replace(known, location=site)}
    return replace(finding, message=message, ranks=ranks)


def _own_timeout(world: World, needs: Needs) -> list[Candidate]:
    given_up = {
        pending.rank: (pending, note)
        for pending in failed_calls(world)
        if (note := last_exception(world, pending.rank)) is not None and timed_out(note)
    }
    for pending, note in given_up.values():
        call = pending.call
        view = world.view(pending.rank, call.group) if call else None
        if call is None or view is None or not is_communication_error(note):
            continue
        roots: set[int] = set()
        for rank in _not_there(world, needs, pending.rank, call, view):
            if rank not in world.ranks or rank in world.unrecorded:
                continue
            if world.ended(rank) and not _outlived(world, rank, note):
                continue
            other = given_up[rank][0].call if rank in given_up else None
            if other is not None and other.group == call.group:
                continue  # it waited as well: its own call tells for whom
            waits = world.pending(rank)
            if _acts(world, rank, waits, pending):
                roots.add(rank)
            else:
                roots.update(r for row in waits for r in _roots(world, needs, row))
        if roots:
            culprits = tuple(sorted(roots))
            late = Late(pending, culprits, _waiting_with(world, pending, culprits))
            return [Candidate(_finding(world, late, note.time_ns, timed_out=True))]
    return []


def _outlived(world: World, rank: int, note: Note) -> bool:
    """Whether the rank was still in the program's code when another one had given up waiting, and
    has been ended since: the launcher ends all, and soon."""
    record = world.ranks[rank]
    unseen = world.limits.failed and record.phase is Phase.RUNNING and world.ended_unseen(rank)
    if record.process.signal not in POLITE_SIGNALS and not unseen:
        return False
    if last_exception(world, rank) is not None:
        return False
    last = last_call(world, rank)
    computed = last is None or last.state is CallState.COMPLETED
    return computed and (record.process.ended_ns or 0) > note.time_ns


def _not_there(world: World, needs: Needs, rank: int, call: Call, view: GroupView) -> Iterable[int]:
    """The ranks that have not done their part of a call that failed."""
    if call.signature.peer is None:
        return world.absent(view, call.seq)
    if surely_posted(needs.channels, rank, call):
        return ()
    return {call.signature.peer} & set(view.ranks)


def _all_in_store(world: World) -> list[Candidate]:
    """Returns the finding of a job of which all live ranks wait for keys of a store."""
    waits = {
        rank: wait
        for rank, wait in world.engaged(Activity.STORE).items()
        if world.waited_ns(wait) >= world.limits.hang_ns
    }
    if not waits:
        return []
    alive = [rank for rank in world.ranks if not world.ended(rank)]
    if len(waits) < len(alive):
        return []
    culprits = tuple(sorted(waits))
    last = max(waits.values(), key=lambda wait: wait.since_ns)
    first = standing(world, culprits[0])
    finding = Finding(
        kind="missing_rank",
        message=(
            f"suspected: {ranks_text(culprits)} {verb(culprits, 'waits', 'wait')} for store keys "
            f"that nobody sets; rank {culprits[0]} {printable(first.state)}"
            f"{at_site(first.location)}"
        ),
        culprits=culprits,
        proven=False,
        cause="store",
        ranks=stand(world, chosen(culprits, ())),
        observable_ns=last.since_ns + world.limits.hang_ns,
    )
    return [Candidate(finding)]

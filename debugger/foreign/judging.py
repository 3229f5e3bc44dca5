"""What a flight recorder's trace proves, and what it only suggests: a trace in, findings out.

The rules, in their order:

1. *Mismatch*: at one sequence number of a group ranks have made calls that do not fit (op, dtype,
   number of elements). Proven; whatever comes after it is a consequence, but for a rank outside
   the groups that differ of which rule 2 is true.
2. *Never issued* (host side): members of a group wait in a call that a rank has no record of, or a
   rank in a message of which the peer has not issued the other end, and that rank has nothing
   pending anywhere: it is not held up by anything on record. A rank that is absent because an older
   call of its own is pending is a victim.
3. *Never completed* (device side): a rank's oldest pending call of a group is complete on another
   member: all have issued it, and this rank alone has not come to its end. Or, where the recorder
   tells when calls begin: it has begun on others, and on this rank it has not.
4. *Standstill*: everybody who is waited for waits himself (`standstill`).
5. *Behind*: nothing is pending, but a rank has issued fewer calls than its peers (a recorder that
   cannot tell completion, after everybody gave up).

All but the first are suspected: a record has no clock that says "now". What the record cannot hold
(reduce op, root, splits, tag) is named in each finding.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..diagnosis.findings import Finding
from ..record.wording import place, printable, ranks_text
from .evidence import (
    MESSAGES,
    evident,
    last_seen,
    not_in_record,
    of_waiting,
    standing,
    victims,
)
from .flight_recorder import Entry
from .lag import is_symmetric
from .mismatches import mismatches
from .standstill import standstill
from .trace import Calls, Trace, TracedGroup
from .waits import Wait, waits

AT_WORK_S = 5.0
"""Calls that were younger than this when the dump was written are a job at work; or twice as long
as it has been without a call, or in one, more than once, up to a minute and a call's timeout."""
LONGEST_STEP_S = 60.0
UNKNOWN_STEP_S = 20.0
"""Where dumps leave complete calls out, nothing tells how long a job is without one."""


def judge(trace: Trace, age_s: float | None = None) -> list[Finding]:
    """The findings, the verdict first. `age_s`: how old the newest call was when the dumps were
    written, where that is known: of a job at work nothing is concluded but what is proven."""
    lacks = not_in_record(trace)
    found = mismatches(trace)
    found = [*found, *_apart(trace, found, age_s)] if found else _unmoved(trace, age_s)
    return [replace(one, not_in_record=lacks) for one in found]


def _unmoved(trace: Trace, age_s: float | None) -> list[Finding]:
    pending = waits(trace)
    if _is_at_work(trace, pending, age_s):
        return []
    if not pending:
        behind = _behind(trace)
        return [behind] if behind else []
    found = _stalls(trace, pending, age_s) or standstill(trace, pending)
    return sorted(found, key=lambda one: one.observable_ns)


def _apart(trace: Trace, found: Sequence[Finding], age_s: float | None) -> list[Finding]:
    """A second fault beside mismatches: a rank that never issued what others wait in, in none of
    the groups that differ. Nothing on record holds it up, so it is no consequence of them."""
    pending = waits(trace)
    if MESSAGES in not_in_record(trace) or _is_at_work(trace, pending, age_s):
        return []
    differ = {rank for one in found if one.group is not None for rank in one.group.ranks}
    host = _host(trace, pending, None, differ | trace.missing)
    return [host] if host else []


def _is_at_work(trace: Trace, pending: Sequence[Wait], age_s: float | None) -> bool:
    if age_s is None or any(one.timed_out for wait in pending for one in wait.waiting.values()):
        return False
    return age_s < _at_work_s(trace, pending)


def _at_work_s(trace: Trace, pending: Sequence[Wait]) -> float:
    """So old the newest call of this job may be while it is at work."""
    usual_ns = 0
    for dump in trace.dumps.values():
        made = sorted(entry.created_ns for entry in dump.entries)
        pauses = (later - one for one, later in pairwise(made))
        took = (one.completed_ns - one.created_ns for one in dump.entries if one.completed_ns)
        for many in (heapq.nlargest(2, pauses), heapq.nlargest(2, took)):
            if len(many) == 2:  # one alone is a start, or a checkpoint
                usual_ns = max(usual_ns, many[1])
    usual_s = min(2 * usual_ns / 1e9, LONGEST_STEP_S)
    if not any(dump.tells_of_all for dump in trace.dumps.values()):
        usual_s = max(usual_s, UNKNOWN_STEP_S)
    allowed = (entry.timeout_ms for wait in pending for entry in wait.waiting.values())
    return max(AT_WORK_S, min([usual_s, *(one / 1e3 for one in allowed if one)]))


# -- 2 and 3: the host, or the device -----------------------------------------------------------


@dataclass(frozen=True)
class _Stuck:
    """A call that a rank has issued, and that `ahead` is beyond. `begun`: `ahead` is in it."""

    wait: Wait
    entry: Entry
    ahead: int
    begun: bool


def _stuck(trace: Trace, pending: Sequence[Wait]) -> dict[int, _Stuck]:
    """The oldest such call of each rank. Where a rank that could have has not even issued the call,
    the others cannot have completed it, whatever their records say: torch marks what it has given
    up as complete."""
    found: dict[int, _Stuck] = {}
    for wait in pending:
        if any(rank in trace.dumps and not trace.first_pending(rank) for rank in wait.absent):
            continue
        begun = [rank for rank, entry in wait.waiting.items() if entry.started]
        in_front = _is_in_front(trace, wait)
        for rank, entry in wait.waiting.items():
            ahead = _ahead(wait, rank, in_front)
            if ahead is not None and trace.is_before(rank, _completed_ns(wait, ahead)):
                continue
            if ahead is not None:
                one = _Stuck(wait, entry, ahead, begun=False)
            elif begun and not entry.started and trace.first_pending(rank) is entry:
                if not _timing_is_on(trace, rank):
                    continue
                one = _Stuck(wait, entry, begun[0], begun=True)
            else:
                continue
            known = found.get(rank)
            if known is None or entry.created_ns < known.entry.created_ns:
                found[rank] = one
    return found


def _ahead(wait: Wait, rank: int, in_front: bool) -> int | None:
    """Who is beyond this call, or a later one of the group, so that nothing but its own device can
    keep the rank in it. A root may be over with a broadcast long before the others come to it: that
    alone says so only where the call is in front on all who are in it."""
    if not wait.beyond:
        return None
    if in_front or is_symmetric(wait.waiting[rank]):
        return wait.beyond[0]
    assert wait.seq is not None  # of a collective
    mine = wait.group.calls[rank].by_seq
    later = (seq for seq in sorted(mine) if seq > wait.seq and is_symmetric(mine[seq][0]))
    return next(
        (
            other
            for seq in later
            for other, calls in wait.group.calls.items()
            if other != rank and calls.completed(seq)
        ),
        None,
    )


def _completed_ns(wait: Wait, rank: int) -> int:
    """When this rank was found to be over with the call (0: no record says it)."""
    calls = wait.group.calls.get(rank)
    entries = calls.by_seq.get(wait.seq, ()) if calls is not None and wait.seq is not None else ()
    return max((entry.completed_ns for entry in entries), default=0)


def _is_in_front(trace: Trace, wait: Wait) -> bool:
    """Of all members who are not over with it."""
    return wait.group.members <= {*wait.waiting, *wait.beyond} and all(
        trace.first_pending(rank) is entry for rank, entry in wait.waiting.items()
    )


def _timing_is_on(trace: Trace, rank: int) -> bool:
    """The ranks of a job all have it or none. A dump without complete calls need not show it."""
    if rank in trace.active_only:
        return True
    return any(entry.started for entry in trace.dumps[rank].entries)


def _device(trace: Trace, pending: Sequence[Wait], age_s: float | None) -> Finding | None:
    """`age_s` as in `judge`: what nobody waits behind is stuck only where it is known to be old."""
    culprits = _stuck(trace, pending)
    hurt = victims(pending, culprits)
    stuck = [one.entry for one in culprits.values()]
    is_old = age_s is not None and all(entry.tells_completion for entry in stuck)
    if not culprits or not (hurt or is_old or any(entry.timed_out for entry in stuck)):
        return None  # the last calls of a job that is over, of which the record lags
    first = min(culprits, key=lambda rank: culprits[rank].entry.created_ns)
    one = culprits[first]
    on_device = any(stuck.entry.tells_completion for stuck in culprits.values())
    how = (
        f"has not begun it, which rank {one.ahead} has"
        if one.begun
        else f"never completed it, which rank {one.ahead} did"
    )
    why = ": the device stands still" if on_device else ""
    return Finding(
        kind="stalled",
        message=(
            f"suspected: {ranks_text(culprits)} issued {one.wait.call(first)} {one.wait.place} "
            f"and {how}{why}"
        ),
        culprits=tuple(sorted(culprits)),
        victims=hurt,
        proven=False,
        group=one.wait.group.evidence(),
        seq=one.wait.seq,
        ranks={
            **of_waiting(trace, pending),
            **{
                rank: standing("issued, never completed", stuck.entry)
                for rank, stuck in culprits.items()
            },
        },
        observable_ns=one.entry.created_ns,
        side="device" if on_device else None,
    )


def _host(
    trace: Trace,
    pending: Sequence[Wait],
    device: Finding | None,
    apart_from: Collection[int] = (),
) -> Finding | None:
    """Who never issued what others wait in: ranks with a dump and nothing pending, and ranks
    without a dump, if somebody who is not at fault waits for them in his *oldest* pending call.
    (What lies behind an older call is issued and cannot begin, on whichever ranks have it: that a
    rank without a dump is not among them tells nothing.) Of those without one nobody knows what
    they have issued: one is at fault where the dumps of all others are there, and nobody else can
    be. Nobody of `apart_from` is named, and whose dump is older than the call only where nobody
    else is at fault."""
    idle: dict[int, Wait] = {}
    early: dict[int, Wait] = {}
    unseen: dict[int, Wait] = {}
    at_fault = set(device.culprits if device else ())
    for wait in sorted(pending, key=lambda one: (one.seq is None, one.since_ns)):
        in_front = any(
            trace.first_pending(rank) is entry
            for rank, entry in wait.waiting.items()
            if rank not in at_fault
        )
        for rank in wait.absent:
            if rank in apart_from:
                continue
            if rank not in trace.dumps:
                if in_front:
                    unseen.setdefault(rank, wait)
            elif trace.first_pending(rank) is None and rank not in trace.lost:
                (early if trace.is_before(rank, wait.since_ns) else idle).setdefault(rank, wait)
    alone = not device and unseen.keys() == trace.missing and len(unseen) == 1
    culprits = idle or ({} if unseen or device else early) or (unseen if alone else {})
    concerned = {**culprits, **unseen}
    if not concerned:
        return None
    # Of a rank that is waited for in a collective and in a message, the collective says more.
    wait = min(concerned.values(), key=lambda one: (one.seq is None, one.since_ns))
    waits_for = f"{wait.call(next(iter(wait.waiting)))} {wait.place} waits for "
    waits_for += ranks_text(wait.absent)
    if culprits and culprits is not unseen:
        waits_for = f"{ranks_text(culprits)} never issued what others wait in: {waits_for}"
    why = "" if not unseen else f"; no dump of {ranks_text(unseen)} is here"
    if culprits is early:
        whose = "its dump was" if len(early) == 1 else "their dumps were"
        why = f"; {whose} written before, and may be of a moment at which the job was at work"
    if idle and MESSAGES in not_in_record(trace):
        why += "; whether one is in a message, or forms a group, is not in this kind of record"
    return Finding(
        kind="missing_rank" if wait.seq is not None else "unmatched_p2p",
        message=f"suspected: {waits_for}{why}",
        culprits=tuple(sorted(culprits)),
        victims=victims(pending, culprits),
        missing=tuple(sorted(unseen)),
        proven=False,
        cause="unknown" if wait.seq is not None else None,
        group=wait.group.evidence(),
        seq=wait.seq,
        ranks={
            **of_waiting(trace, pending),
            **{rank: last_seen(trace, rank) for rank in concerned},
        },
        observable_ns=wait.since_ns,
        side="host" if idle else None,
    )


def _stalls(trace: Trace, pending: Sequence[Wait], age_s: float | None) -> list[Finding]:
    """What stands still on the host, on the device, or both. A rank without a dump beside one
    whose device stands still may have the same fault: nothing tells on which side it was."""
    device = _device(trace, pending, age_s)
    host = _host(trace, pending, device)
    if device is None or host is None or host.side is not None:
        return [one for one in (device, host) if one is not None]
    return [
        replace(
            device,
            message=f"{device.message}; no dump of {ranks_text(host.missing)} is here, of whom "
            "others wait for what may not be issued either",
            missing=host.missing,
            ranks={**host.ranks, **device.ranks},
        )
    ]


# -- 5: nobody waits any more -------------------------------------------------------------------


def _behind(trace: Trace) -> Finding | None:
    """Who has issued fewer calls of a group than another member; the earliest such call."""
    first: tuple[int, TracedGroup, int, tuple[int, ...], Entry] | None = None
    lives = {(group.key, rank) for group in trace.groups for rank in group.calls}
    for group in trace.groups:
        known = {rank: calls.reached for rank, calls in group.calls.items()}
        for rank in group.ranks:
            dump = None if rank in known else trace.dumps.get(rank)
            if dump is not None and dump.whole and (not dump.uncalled or _needs_all(group)):
                known[rank] = -1
        if len(set(known.values())) < 2:
            continue
        seq = min(known.values()) + 1
        entry = _made(group.calls, seq)
        if entry is None:
            continue
        late = tuple(sorted(rank for rank, last in known.items() if last < seq))
        newest_ns = max(one.created_ns for calls in group.calls.values() for one in calls.entries)
        if any(rank in trace.dumps and trace.is_before(rank, newest_ns) for rank in late):
            continue
        name, desc, life = group.key
        if any(((name, desc, life + 1), rank) in lives for rank in late):
            continue  # it has initialised again, and may have left a world of its own
        if first is None or entry.created_ns < first[4].created_ns:
            first = (seq, group, len(known), late, entry)
    if first is None:
        return None
    seq, group, _, late, entry = first
    return Finding(
        kind="missing_rank",
        message=(
            f"suspected: {ranks_text(late)} never issued {printable(str(entry.signature))} "
            f"{_place(group, seq)}, which {ranks_text(set(group.calls) - set(late))} did"
        ),
        culprits=late,
        victims=tuple(sorted(set(group.calls) - set(late))),
        proven=False,
        cause="unknown",
        group=group.evidence(),
        seq=seq,
        ranks={rank: last_seen(trace, rank) for rank in evident(late, group.calls)},
        observable_ns=entry.created_ns,
        side="host",
    )


def _needs_all(group: TracedGroup) -> bool:
    """Whether a call of the group is over that nobody ends alone, without being known to be
    complete: who has come to none of its calls has made it fail."""
    made = (entry for calls in group.calls.values() for entry in calls.entries)
    return any(is_symmetric(one) and not (one.done and one.tells_completion) for one in made)


def _made(calls: Mapping[int, Calls], seq: int) -> Entry | None:
    found = [entry for one in calls.values() for entry in one.by_seq.get(seq, ())]
    return min(found, key=lambda entry: entry.created_ns) if found else None


def _place(group: TracedGroup, seq: int) -> str:
    return place(group.key[0], group.key[1], seq)

"""What a flight recorder's trace proves, and what it only suggests: a trace in, findings out.

The rules, in their order:

1. *Mismatch*: at one sequence number of a group ranks have made calls that do not fit (op, dtype,
   number of elements). Proven; whatever comes after it is a consequence.
2. *Never issued* (host side): members of a group wait in a call that a rank has no record of, and
   that rank has nothing pending anywhere: it is not held up by anything on record. A rank that is
   absent because an older call of its own is pending is a victim.
3. *Never completed* (device side): a rank's oldest pending call of a group is complete on another
   member: all have issued it, and this rank's device alone has not come to its end.
4. *Cycle*: everybody who is waited for waits himself: ranks issued collectives of several groups in
   different orders.
5. *Behind*: nothing is pending, but a rank has issued fewer calls than its peers (a recorder that
   cannot tell completion, after everybody gave up).

All but the first are suspected: a record has no clock that says "now". What the record cannot hold
(reduce op, root, splits, tag) is named in each finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.findings import Finding, RankEvidence
from ..record.dispute import dispute_text, opponents
from ..record.majority import vote
from ..record.signature import Signature, agreement_key, disagreement
from ..record.wording import place, printable, ranks_text, spans
from .flight_recorder import Entry
from .trace import Calls, Trace, TracedGroup

NOT_IN_RECORD = ("reduce_op", "root", "splits", "tag")
"""What torch's flight recorder never holds; nothing of it is guessed."""
AT_WORK_S = 1.0
"""Calls that were younger than this when the dump was written are a job at work."""
MOST_EVIDENCE = 128


def judge(trace: Trace, age_s: float | None = None) -> list[Finding]:
    """The findings, the verdict first. `age_s`: how old the newest call was when the dumps were
    written, where that is known."""
    found = _mismatches(trace)
    if found:
        return found
    waits = list(_waits(trace))
    if waits and age_s is not None and age_s < AT_WORK_S:
        return []
    found = _stalls(trace, waits)
    if not found and waits:
        cycle = _cycle(trace, waits)
        found = [cycle] if cycle else []
    if not found and not waits:
        behind = _behind(trace)
        found = [behind] if behind else []
    return sorted(found, key=lambda one: one.observable_ns)


# -- 1: calls that do not fit -------------------------------------------------------------------


def _mismatches(trace: Trace) -> list[Finding]:
    """The first of each group; of groups that share ranks only the earliest is a cause."""
    firsts = sorted(
        (one for group in trace.groups if (one := _first_mismatch(group)) is not None),
        key=lambda one: one.observable_ns,
    )
    causes: list[Finding] = []
    for one in firsts:
        ranks = set(one.group.ranks if one.group else ())
        if all(ranks.isdisjoint(other.group.ranks if other.group else ()) for other in causes):
            causes.append(one)
    return causes


def _first_mismatch(group: TracedGroup) -> Finding | None:
    made: dict[int, dict[int, Sequence[Entry]]] = {}
    for rank, calls in group.calls.items():
        for seq, entries in calls.by_seq.items():
            made.setdefault(seq, {})[rank] = entries
    for seq in sorted(made):
        signatures = {rank: _comparable(entries) for rank, entries in made[seq].items()}
        if len(set(map(id, signatures.values()))) == 1:
            continue  # the same object is the same call
        keys = {rank: agreement_key(one) for rank, one in signatures.items()}
        if len(set(keys.values())) > 1:
            return _mismatch(group, seq, signatures, keys, made[seq])
    return None


def _comparable(entries: Sequence[Entry]) -> Signature:
    """What the ranks must agree on; a coalesced call is compared by its ops alone."""
    if len(entries) == 1:
        return entries[0].signature
    ops = dict.fromkeys(entry.signature.op for entry in entries)
    return Signature(op=" + ".join(ops))


def _mismatch(
    group: TracedGroup,
    seq: int,
    signatures: Mapping[int, Signature],
    keys: Mapping[int, tuple[object, ...]],
    entries: Mapping[int, Sequence[Entry]],
) -> Finding:
    answers: dict[tuple[object, ...], list[int]] = {}
    calls: dict[tuple[object, ...], Signature] = {}
    for rank, key in keys.items():
        answers.setdefault(key, []).append(rank)
        calls.setdefault(key, signatures[rank])
    result = vote(answers, 0)
    usual, odd = opponents(result)
    where = f"collective {_place(group, seq)} ({len(group.ranks)} ranks)"
    absent = tuple(rank for rank in group.ranks if rank not in signatures)
    return Finding(
        kind=disagreement(calls[usual], calls[odd]) or "shape_mismatch",
        message=dispute_text(result, calls, where),
        culprits=result.culprits,
        victims=tuple(sorted({*result.others, *absent})),
        group=group.evidence(),
        seq=seq,
        ranks={
            rank: RankEvidence(
                f"called #{seq}",
                str(signatures[rank]),
                entries[rank][0].site,
                entries[rank][0].stack,
            )
            for rank in _evident(result.culprits, signatures)
        },
        observable_ns=min(one.created_ns for many in entries.values() for one in many),
        side=None,
        not_in_record=NOT_IN_RECORD,
    )


# -- who waits for whom -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wait:
    """The oldest pending collectives of a group at one sequence number."""

    group: TracedGroup
    seq: int
    waiting: Mapping[int, Entry]
    absent: tuple[int, ...]

    @property
    def since_ns(self) -> int:
        return min(entry.created_ns for entry in self.waiting.values())


def _waits(trace: Trace) -> Iterator[_Wait]:
    for group in trace.groups:
        oldest: dict[int, dict[int, Entry]] = {}
        for rank, calls in group.calls.items():
            entry = calls.first_pending
            if entry is not None and entry.seq is not None:
                oldest.setdefault(entry.seq, {})[rank] = entry
        for seq, waiting in sorted(oldest.items()):
            absent = tuple(
                rank
                for rank in group.ranks
                if rank not in waiting and not _has_issued(group, rank, seq)
            )
            yield _Wait(group, seq, waiting, absent)


def _has_issued(group: TracedGroup, rank: int, seq: int) -> bool:
    calls = group.calls.get(rank)
    reached = calls.reached if calls is not None else None
    return reached is not None and reached >= seq


def _completed(group: TracedGroup, rank: int, seq: int) -> bool:
    """Whether the rank's record says, in one way or another, that this call is complete on it."""
    calls = group.calls.get(rank)
    if calls is None:
        return False
    entries = calls.by_seq.get(seq)
    if entries is not None:
        return all(entry.done for entry in entries)
    pending = calls.first_pending
    if pending is not None and pending.seq is not None and pending.seq > seq:
        return True
    return calls.completed is not None and calls.completed >= seq


# -- 2 and 3: the host, or the device -----------------------------------------------------------


def _device(trace: Trace, waits: Sequence[_Wait]) -> Finding | None:
    culprits: dict[int, tuple[_Wait, Entry]] = {}
    finished: dict[int, int] = {}
    for wait in waits:
        for rank, entry in wait.waiting.items():
            if not _tells_completion(entry):
                continue
            others = [one for one in wait.group.ranks if one != rank]
            done = [one for one in others if _completed(wait.group, one, wait.seq)]
            if not done:
                continue
            known = culprits.get(rank)
            if known is None or entry.created_ns < known[1].created_ns:
                culprits[rank] = (wait, entry)
                finished[rank] = done[0]
    if not culprits:
        return None
    first = min(culprits, key=lambda rank: culprits[rank][1].created_ns)
    wait, entry = culprits[first]
    names = ranks_text(culprits)
    call = printable(str(entry.signature))
    return Finding(
        kind="stalled",
        message=(
            f"suspected: {names} issued {call} {_place(wait.group, wait.seq)} and never completed "
            f"it, which rank {finished[first]} did: the device stands still"
        ),
        culprits=tuple(sorted(culprits)),
        victims=_victims(waits, culprits),
        proven=False,
        group=wait.group.evidence(),
        seq=wait.seq,
        ranks={
            **_evidence_of_waiting(trace, waits),
            **{
                rank: RankEvidence(
                    "issued, never completed", str(one.signature), one.site, one.stack
                )
                for rank, (_, one) in culprits.items()
            },
        },
        observable_ns=entry.created_ns,
        side="device",
        not_in_record=NOT_IN_RECORD,
    )


def _tells_completion(entry: Entry) -> bool:
    return entry.library.startswith(("nccl", "rccl", "xccl", "hccl", "mccl"))


def _host(trace: Trace, waits: Sequence[_Wait], device: Finding | None) -> Finding | None:
    """Who never issued what others wait in: ranks with a dump and nothing pending, and ranks
    without a dump, if somebody who is not at fault waits for them in his *oldest* pending call.
    (What lies behind an older call is issued and cannot begin, on whichever ranks have it: that a
    rank without a dump is not among them tells nothing.)"""
    idle: dict[int, _Wait] = {}
    unseen: dict[int, _Wait] = {}
    at_fault = set(device.culprits if device else ())
    for wait in sorted(waits, key=lambda one: one.since_ns):
        in_front = any(
            trace.first_pending(rank) is entry
            for rank, entry in wait.waiting.items()
            if rank not in at_fault
        )
        for rank in wait.absent:
            if rank not in trace.dumps:
                if in_front:
                    unseen.setdefault(rank, wait)
            elif trace.first_pending(rank) is None:
                idle.setdefault(rank, wait)
    culprits = {**idle, **unseen}
    if not culprits:
        return None
    first = min(culprits, key=lambda rank: culprits[rank].since_ns)
    wait = culprits[first]
    entry = next(iter(wait.waiting.values()))
    why = "" if not unseen else f"; {ranks_text(unseen)} left no dump"
    return Finding(
        kind="missing_rank",
        message=(
            f"suspected: {ranks_text(culprits)} never issued what others wait in: "
            f"{printable(str(entry.signature))} {_place(wait.group, wait.seq)} waits for "
            f"{ranks_text(wait.absent)}{why}"
        ),
        culprits=tuple(sorted(culprits)),
        victims=_victims(waits, culprits),
        missing=tuple(sorted(unseen)),
        proven=False,
        cause="unknown",
        group=wait.group.evidence(),
        seq=wait.seq,
        ranks={
            **_evidence_of_waiting(trace, waits),
            **{rank: _last_seen(trace, rank) for rank in culprits},
        },
        observable_ns=wait.since_ns,
        side="host" if idle else None,
        not_in_record=NOT_IN_RECORD,
    )


def _stalls(trace: Trace, waits: Sequence[_Wait]) -> list[Finding]:
    """What stands still on the host, on the device, or both. A rank that left no dump beside one
    whose device stands still may have the same fault: nothing tells on which side it was."""
    device = _device(trace, waits)
    host = _host(trace, waits, device)
    if device is None or host is None or host.side is not None:
        return [one for one in (device, host) if one is not None]
    return [
        replace(
            device,
            message=f"{device.message}; {ranks_text(host.culprits)} left no dump, and may be at "
            "fault as well",
            culprits=tuple(sorted({*device.culprits, *host.culprits})),
            victims=tuple(sorted(set(device.victims) - set(host.culprits))),
            missing=host.missing,
            ranks={**host.ranks, **device.ranks},
        )
    ]


def _last_seen(trace: Trace, rank: int) -> RankEvidence:
    dump = trace.dumps.get(rank)
    if dump is None:
        return RankEvidence("left no dump")
    if not dump.entries:
        return RankEvidence("has nothing pending")
    last = dump.entries[-1]
    return RankEvidence("was last in", str(last.signature), last.site, last.stack)


def _evidence_of_waiting(trace: Trace, waits: Sequence[_Wait]) -> dict[int, RankEvidence]:
    found: dict[int, RankEvidence] = {}
    for rank in _evident((), (rank for wait in waits for rank in wait.waiting)):
        entry = trace.first_pending(rank)
        if entry is not None:
            found[rank] = RankEvidence("waits in", str(entry.signature), entry.site, entry.stack)
    return found


def _victims(waits: Sequence[_Wait], culprits: Iterable[int]) -> tuple[int, ...]:
    accused = set(culprits)
    return tuple(sorted({rank for wait in waits for rank in wait.waiting} - accused))


# -- 4 and 5 ------------------------------------------------------------------------------------


def _cycle(trace: Trace, waits: Sequence[_Wait]) -> Finding | None:
    """A cycle of ranks of which each waits, in its oldest pending call, for the next one."""
    waits_in = {
        rank: wait
        for wait in waits
        for rank, entry in wait.waiting.items()
        if entry is trace.first_pending(rank)
    }
    for start in sorted(waits_in):
        path, at = [], start
        while at in waits_in and at not in path:
            path.append(at)
            onward = [one for one in waits_in[at].absent if one in waits_in]
            if not onward:
                break
            at = onward[0]
        else:
            if at in path:
                return _deadlock(trace, waits, waits_in, path[path.index(at) :])
    return None


def _deadlock(
    trace: Trace, waits: Sequence[_Wait], waits_in: Mapping[int, _Wait], cycle: Sequence[int]
) -> Finding:
    steps = []
    for rank, onward in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        wait = waits_in[rank]
        call = printable(str(wait.waiting[rank].signature))
        steps.append(
            f"rank {rank} waits for rank {onward} in {call} {_place(wait.group, wait.seq)}"
        )
    first = waits_in[cycle[0]]
    return Finding(
        kind="deadlock",
        message=f"suspected: ranks wait for each other in a cycle: {'; '.join(steps)}",
        culprits=tuple(cycle),
        victims=_victims(waits, cycle),
        proven=False,
        group=first.group.evidence(),
        seq=first.seq,
        ranks=_evidence_of_waiting(trace, waits),
        details=steps,
        observable_ns=max(waits_in[rank].since_ns for rank in cycle),
        side=None,
        not_in_record=NOT_IN_RECORD,
    )


def _behind(trace: Trace) -> Finding | None:
    """Who has issued fewer calls of a group than another member; the earliest such call."""
    first: tuple[int, TracedGroup, int, tuple[int, ...], Entry] | None = None
    for group in trace.groups:
        reached = {rank: calls.reached for rank, calls in group.calls.items()}
        for rank in group.ranks:
            if rank not in reached and (dump := trace.dumps.get(rank)) is not None and dump.whole:
                reached[rank] = -1
        known = {rank: seq for rank, seq in reached.items() if seq is not None}
        if len(set(known.values())) < 2:
            continue
        seq = min(known.values()) + 1
        entry = _made(group.calls, seq)
        if entry is None:
            continue
        late = tuple(sorted(rank for rank, last in known.items() if last < seq))
        if first is None or entry.created_ns < first[4].created_ns:
            first = (seq, group, len(known), late, entry)
    if first is None:
        return None
    seq, group, _, late, entry = first
    return Finding(
        kind="missing_rank",
        message=(
            f"suspected: {ranks_text(late)} never issued {printable(str(entry.signature))} "
            f"{_place(group, seq)}, which ranks {spans(set(group.calls) - set(late))} did"
        ),
        culprits=late,
        victims=tuple(sorted(set(group.calls) - set(late))),
        proven=False,
        cause="unknown",
        group=group.evidence(),
        seq=seq,
        ranks={rank: _last_seen(trace, rank) for rank in _evident(late, group.calls)},
        observable_ns=entry.created_ns,
        side="host",
        not_in_record=NOT_IN_RECORD,
    )


def _made(calls: Mapping[int, Calls], seq: int) -> Entry | None:
    found = [entry for one in calls.values() for entry in one.by_seq.get(seq, ())]
    return min(found, key=lambda entry: entry.created_ns) if found else None


# -- words --------------------------------------------------------------------------------------


def _place(group: TracedGroup, seq: int) -> str:
    return place(group.key[0], group.key[1], seq)


def _evident(first: Iterable[int], others: Iterable[int]) -> list[int]:
    return list(dict.fromkeys([*first, *others]))[:MOST_EVIDENCE]

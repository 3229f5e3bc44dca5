"""A straggler keeps the others waiting: the times at which ranks arrive at their collectives show
it.

The rule is asked when a run has ended, or on request, over the calls that are still on record. A
rank is a straggler of a group when all of this is so, and a balanced group has none:

1. It was the last to arrive at more than half of the collectives, but for those that follow another
   at once: there it is chance which one comes last. So it is where ranks come nearly together
   (`AT_ONCE`): one that writes a checkpoint now and then is not late for the calls between.
2. Of the time that the ranks spent waiting for a last one, it caused most (`SHARE`), and that did
   not change hands: where, in a part of the time, another rank caused most, that was `NOISE`.
3. Between its calls it takes `FACTOR` times as long as the median of the others. The `OUTLIERS`
   longest turns of each rank do not count: one stall on a busy machine makes nobody a straggler.
4. It costs: what it takes more between its calls, and the time by which it came after the last but
   one, are both a `COST` of the time looked at.

Of a short run more is asked (`FEW`). The beginning, where some import and compile longer than
others, is left out.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from ...record.ops import OPS, POINT_TO_POINT
from ...record.snapshot import Call, CallSite, Group, GroupKey, Snapshot
from ...record.wording import at_site, group_name, printable
from ..findings import Finding, RankEvidence, group_evidence
from ..limits import MOST_READ, SECOND_NS
from ..story import step

SHARE = 0.75
PARTS = 4
NOISE = 0.1
FACTOR = 1.25
COST = 0.1
OUTLIERS = 3
AT_ONCE = 0.05
"""Of the time that the slowest rank takes before a collective, on average: one for which no rank
has taken longer follows at once, and ranks that come within it come together."""
FEWEST = 7
"""Collectives that all ranks of the group have on record, and that do not follow at once."""
FEW, FEW_FACTOR, FEW_EXCEPTIONS = 20, 3.0, 1
"""Of fewer than that it must be last at all but one, and take three times as long."""
WARM_UP, WARM_UP_SHARE = 10, 4
"""Collectives at the beginning that do not count, but no more than one in four."""
MOST_FACTOR = 100.0
NEEDS_ALL = frozenset(op for op, row in OPS.items() if row.certain == "all") - POINT_TO_POINT
"""Nobody is through with one of these before everybody has come."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrival of a rank at a collective. `own_ns` is the time since its last call began, or
    ended."""

    call: Call
    own_ns: int


@dataclass(slots=True)
class Lateness:
    """The lateness of a rank in a group."""

    last: int = 0
    last_after_work: int = 0
    """The same without the collectives that followed another at once, or that the last but one came
    to at nearly the same time."""
    parts_ns: list[int] = field(default_factory=lambda: [0] * PARTS)
    """The time that others waited for it, by parts of the time looked at."""
    turns_ns: list[int] = field(default_factory=list)
    """The times that it took between its calls."""
    margins_ns: list[int] = field(default_factory=list)
    ops: Counter[str] = field(default_factory=Counter)
    sites: Counter[CallSite] = field(default_factory=Counter)

    @property
    def caused_ns(self) -> int:
        """Returns how long others waited for it."""
        return sum(self.parts_ns)

    def usual_ns(self) -> int:
        """Returns the time that it took between its calls, in total, but for the longest turns."""
        return sum(sorted(self.turns_ns)[:-OUTLIERS])


def stragglers(snapshot: Snapshot) -> list[Finding]:
    """At most one warning for each rank, about the group where it costs most."""
    ranks = {number: rank for number, rank in snapshot.ranks.items() if rank.history}
    if len(ranks) < 2:
        return []
    count = MOST_READ // len(ranks)
    calls = {n: rank.history.recent(count) for n, rank in ranks.items() if rank.history}
    # When the last rank came to each collective that needs all, and that all have on record.
    counts: dict[tuple[GroupKey, int], tuple[int, int]] = {}
    for own in calls.values():
        for call in own:
            if call.signature.op in NEEDS_ALL:
                so_far, until_ns = counts.get((call.group, call.seq), (0, 0))
                row = (so_far + 1, max(until_ns, call.issued_ns))
                counts[call.group, call.seq] = row
    sizes = {key: len(group.ranks) for rank in ranks.values() for key, group in rank.groups.items()}
    last_ns = {
        key: until_ns for key, (so_far, until_ns) in counts.items() if so_far == sizes.get(key[0])
    }
    arrivals = {number: _arrivals(rows, last_ns) for number, rows in calls.items()}
    found: dict[int, tuple[int, Finding]] = {}
    every: dict[tuple[GroupKey, tuple[int, ...]], Group] = {}
    for one in ranks.values():
        for made in one.groups.values():
            every.setdefault((made.key, made.ranks), made)
    for group in every.values():
        if len(group.ranks) < 2:
            continue
        members = [rank for rank in group.ranks if rank in arrivals]
        judged = _judge(group, members, {rank: arrivals[rank] for rank in members})
        if judged is not None:
            rank, cost_ns, finding = judged
            if rank not in found or found[rank][0] < cost_ns:
                found[rank] = (cost_ns, finding)
    return [_by_its_clock(snapshot, finding) for _, finding in found.values()]


@step("clocks")
def _by_its_clock(snapshot: Snapshot, finding: Finding) -> Finding:
    """Says where the clocks of its host and of another are not known as well as it is late."""
    error_ms = snapshot.between_clocks_ns(finding.culprits, finding.victims) / 1e6
    if error_ms <= finding.data["late_ms"]:
        return finding
    detail = (
        f"how late it came is uncertain: the clocks of the hosts are known to within "
        f"{error_ms:.1f} ms; how long it takes between its calls is by its own"
    )
    return replace(finding, details=(*finding.details, detail))


def _arrivals(
    calls: Sequence[Call], last_ns: Mapping[tuple[GroupKey, int], int]
) -> dict[tuple[GroupKey, int], Arrival]:
    """The rank's last collectives.

    That a call has ended, which its rank waits for in C++ (DDP), is seen by the next heartbeat, and
    may be on record later than the call that was made after it. It was not before the last rank
    came: where that one came first, the rank is taken to have waited for it.
    """
    found = {}
    ended_ns: list[int] = []  # of earlier calls, a heap: a wait may be for one of long ago
    latest_ns = 0
    for before, call in pairwise(calls):
        if before.completed_ns:
            heapq.heappush(ended_ns, before.completed_ns)
        all_came_ns = last_ns.get((before.group, before.seq))
        if all_came_ns is not None and before.signature.peer is None:
            heapq.heappush(ended_ns, all_came_ns)
        while ended_ns and ended_ns[0] <= call.issued_ns:
            latest_ns = heapq.heappop(ended_ns)
        if call.signature.peer is None:
            from_ns = max(latest_ns, before.issued_ns)
            found[call.group, call.seq] = Arrival(call, max(0, call.issued_ns - from_ns))
    return found


def _judge(
    group: Group,
    members: Sequence[int],
    arrivals: Mapping[int, Mapping[tuple[GroupKey, int], Arrival]],
) -> tuple[int, int, Finding] | None:
    """The straggler, what it costs (in ns), and the warning."""
    if len(members) < 2:
        return None
    numbers = [{seq for key, seq in arrivals[rank] if key == group.key} for rank in members]
    common = set.intersection(*numbers)
    warm_up = min(WARM_UP, (max(common, default=0) + 1) // WARM_UP_SHARE)
    seqs = sorted(seq for seq in common if seq >= warm_up)
    if len(seqs) < FEWEST:
        return None
    lateness = {rank: Lateness() for rank in members}
    rows = [{rank: arrivals[rank][group.key, seq] for rank in members} for seq in seqs]
    slowest_ns = [max(arrival.own_ns for arrival in row.values()) for row in rows]
    least_ns = AT_ONCE * sum(slowest_ns) / len(rows)
    after_work = [longest_ns >= least_ns for longest_ns in slowest_ns]
    if sum(after_work) < FEWEST:
        return None
    for index, row in enumerate(rows):
        from_ns = least_ns if after_work[index] else float("inf")
        _count(row, lateness, index * PARTS // len(rows), from_ns)
    waited_ns = sum(one.caused_ns for one in lateness.values())
    rank = max(members, key=lambda one: lateness[one].caused_ns)
    late = lateness[rank]
    own_ns = late.usual_ns()
    others_ns = median(lateness[one].usual_ns() for one in members if one != rank)
    more_ns = int(own_ns - others_ns)
    firsts = [arrivals[one][group.key, seqs[0]].call.issued_ns for one in members]
    ends = [arrivals[one][group.key, seqs[-1]].call.issued_ns for one in members]
    span_ns = max(ends) - min(firsts)
    few, last = len(seqs) < FEW, late.last_after_work
    if (
        (last < sum(after_work) - FEW_EXCEPTIONS if few else last * 2 <= sum(after_work))
        or late.caused_ns < SHARE * waited_ns
        or _by_others_ns(late, list(lateness.values())) > NOISE * waited_ns
        or own_ns < (FEW_FACTOR if few else FACTOR) * others_ns
        or min(more_ns, sum(late.margins_ns)) < max(COST * span_ns, SECOND_NS // 10)
    ):
        return None
    factor = min(MOST_FACTOR, own_ns / others_ns if others_ns else MOST_FACTOR)
    share = late.caused_ns / waited_ns
    margin_ms = median(late.margins_ns) / 1e6
    more = "more than " if factor >= MOST_FACTOR else ""
    often = f"the last to arrive at {late.last} of {len(seqs)} collectives"
    site = late.sites.most_common(1)[0][0] if late.sites else None
    message = (
        f'rank {rank} is {often} of group "{group_name(group.key[0], group.desc)}", '
        f"{margin_ms:.1f} ms after the others (median), mostly{at_site(site)}: it causes "
        f"{share:.0%} of the time that ranks wait there, and takes {more}{factor:.1f} times as "
        "long as they do between its calls"
    )
    op, _ = late.ops.most_common(1)[0]
    by_op = ", ".join(f"{name}: {count}" for name, count in late.ops.most_common(4))
    finding = Finding(
        kind="straggler",
        message=message,
        culprits=(rank,),
        victims=tuple(one for one in members if one != rank),
        severity="warning",
        group=group_evidence(group),
        ranks={rank: RankEvidence(often, printable(op), site)},
        details=(f"how often it was last, by op: {printable(by_op)}",),
        data={
            "collectives": len(seqs),
            "last": late.last,
            "factor": round(factor, 2),
            "share": round(share, 3),
            "late_ms": round(margin_ms, 3),
            "span_s": round(span_ns / 1e9, 3),
            "by_op": dict(late.ops),
        },
    )
    return rank, more_ns, finding


def _by_others_ns(late: Lateness, every: Sequence[Lateness]) -> int:
    """The waiting in those parts of the time in which another rank caused most, by that rank."""
    leaders = (max(one.parts_ns[part] for one in every) for part in range(PARTS))
    return sum(most for most, own in zip(leaders, late.parts_ns, strict=True) if most > own)


def _count(
    row: Mapping[int, Arrival], lateness: Mapping[int, Lateness], part: int, from_ns: float
) -> None:
    """Enter one collective of that part of the time. `from_ns`: by how much the last rank has to
    come after the last but one for that to be no chance."""
    times = sorted((arrival.call.issued_ns, rank) for rank, arrival in row.items())
    last_ns, last = times[-1]
    late = lateness[last]
    late.last += 1
    margin_ns = last_ns - times[-2][0]
    late.last_after_work += margin_ns >= from_ns
    late.parts_ns[part] += sum(last_ns - issued_ns for issued_ns, _ in times)
    late.margins_ns.append(margin_ns)
    late.ops[row[last].call.signature.op] += 1
    site = row[last].call.site
    if site is not None:
        late.sites[site] += 1
    for rank, arrival in row.items():
        lateness[rank].turns_ns.append(arrival.own_ns)

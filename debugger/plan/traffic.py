"""Adds up the calls of all ranks: by group (as a role: "mesh_tp" of 8 ranks, 128 times), op and
step, with what a link of given latency and bandwidth would need for them. The calls are those of a
run's flight records, or of the programs of ranks that were planned.

The cost of a call is that of the usual algorithms, in the model of latency and bandwidth: a message of
N bytes takes alpha + N beta, whoever else sends (Hockney, "The communication challenge for MPP"
(1994)). A rank can send and receive at a time; what the reductions compute is not counted.

| algorithm | source |
|---|---|
| ring | Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009) |
| doubling, halving, tree, scatter_gather, pairwise | Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005) |
| bruck | Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997) |
| dissemination | Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988) |

They are the costs that distcore's own algorithms have (a test counts their messages). A library on
GPUs may do better within a node, and none does better over the links than the least bytes of these.
"""  # noqa: E501 (a table)

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..record.lines import PackedLines
from ..record.ops import Pattern, op_of
from ..record.signature import Signature, call_bytes, item_bytes, tensors_bytes
from ..record.snapshot import Call, CallSite, Creation, Group, GroupKey, Place, Rank
from ..record.wording import UNDEFINED, counted, group_name, site_text
from .limits import MOST_PERIODS
from .program import CutOff, Ended, Made, Program

UNKNOWN = "a group that is no longer on record"


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The calls of one rank. The first `lost` calls are no longer on record; `calls` are all
    others.

    `sites` are the lines where groups were made, as far as known. `end` says how it ended: ""
    where nobody knows, or it went on.
    """

    rank: int
    world_size: int
    calls: Sequence[Call]
    groups: Mapping[GroupKey, Group] = field(default_factory=dict)
    sites: Mapping[GroupKey, CallSite] = field(default_factory=dict)
    lost: int = 0
    end: str = ""

    def group_names(self) -> dict[GroupKey, str]:
        """Returns the name of each group of this rank: alike on all ranks, and in every run of the
        program, whatever number of ranks it has."""
        found = {}
        for key, group in self.groups.items():
            site = self.sites.get(key)
            found[key] = f"made at {site_text(site)}" if site is not None else "without a name"
            if group.desc not in ("", UNDEFINED):
                found[key] = group_name(key[0], group.desc)
        return found


def of_program(program: Program) -> RankCalls:
    """Returns those of a rank that was planned; in a plan the whole of it is on record."""
    calls, sites, end = [], {}, ""
    for event in program.events:
        match event:
            case Made(call):
                calls.append(call)
            case Ended(exit_code, signal):
                end = f"signal {signal}" if signal else f"exit code {exit_code}"
            case CutOff(why):
                end = f"cut off: {why}"
            case _:
                creation = getattr(event, "creation", None)
                if isinstance(creation, Creation) and creation.site is not None:
                    sites[creation.group] = creation.site
    made: dict[GroupKey, list[Place | None]] = defaultdict(list)
    for call in calls:
        if call.signature.peer is None:
            made[call.group].append(call.place)
    return RankCalls(
        rank=program.rank,
        world_size=program.world_size,
        calls=calls,
        groups={
            key: replace(group, issued=len(made[key]), lines=PackedLines(enumerate(made[key])))
            for key, group in program.groups.items()
        },
        sites=sites,
        end=end,
    )


def of_rank(rank: Rank) -> RankCalls:
    """Returns those of a rank whose flight record is there: its ring holds the last calls."""
    calls = rank.history.recent(rank.calls) if rank.history is not None else ()
    return RankCalls(
        rank=rank.rank,
        world_size=rank.world_size,
        calls=calls,
        groups=dict(rank.groups),
        sites={one.group: one.site for one in rank.creations if one.site is not None},
        lost=calls[0].number if calls else rank.calls,
        end="" if rank.exit_code is None else f"exit code {rank.exit_code}",
    )


def of_programs(programs: Mapping[int, Program]) -> list[RankCalls]:
    """Returns those of all ranks of a plan, in their order."""
    return [of_program(programs[rank]) for rank in sorted(programs)]


def of_ranks(ranks: Iterable[Rank]) -> list[RankCalls]:
    """Returns those of all ranks of a run, in their order."""
    return [of_rank(rank) for rank in sorted(ranks, key=lambda one: one.rank)]


@dataclass(frozen=True, slots=True)
class Link:
    """Between any two ranks: the time of an empty message, and what passes in a second."""

    latency_us: float = 10.0
    bandwidth_gbs: float = 25.0

    def time_us(self, cost: Cost) -> float:
        """The time of one call; a GB is 10**9 bytes."""
        return cost.rounds * self.latency_us + cost.size_bytes / (self.bandwidth_gbs * 1e3)

    def __str__(self) -> str:
        return f"{self.latency_us:g} us and {self.bandwidth_gbs:g} GB/s"


@dataclass(frozen=True, slots=True)
class Cost:
    """The messages one after the other, and the bytes in them: of the rank that is last."""

    algorithm: str
    rounds: int
    size_bytes: float


def costs(signature: Signature, size: int, place: int = 0) -> tuple[Cost, ...]:
    """By each algorithm that does this op in a group of `size` ranks, of which the caller is at
    `place`. A group of one sends nothing."""
    if size < 2:
        return ()
    given = call_bytes(signature)
    low = size.bit_length() - 1
    high = (size - 1).bit_length()
    match op_of(signature.op).pattern:
        case Pattern.ALL_REDUCE:
            return _all_reduce(given, size, low, high)
        case Pattern.BROADCAST:
            return (
                Cost("tree", high, high * given),
                Cost("scatter_gather", high + size - 1, 2 * _share(given, size)),
            )
        case Pattern.REDUCE:
            return (
                Cost("tree", high, high * given),
                Cost("halving", 2 * high, 2 * _share(given, size)),
            )
        case Pattern.ALL_GATHER:
            others = max(tensors_bytes(signature.others), size * given) - given
            return (Cost("ring", size - 1, others), Cost("bruck", high, others))
        case Pattern.GATHER | Pattern.SCATTER:
            others = (size - 1) * given
            return (Cost("tree", high, others), Cost("direct", size - 1, others))
        case Pattern.REDUCE_SCATTER:
            ring = Cost("ring", size - 1, _share(given, size))
            halving = Cost("halving", low, _share(given, size))
            return (ring, halving) if low == high else (ring,)
        case Pattern.ALL_TO_ALL:
            return _all_to_all(signature, given, size, place, high)
        case Pattern.BARRIER:
            return (Cost("dissemination", high, 0),)
        case Pattern.MONITORED_BARRIER:
            return (Cost("direct", 2 * (size - 1), 0),)
        case Pattern.MESSAGE:
            return (Cost("message", 1, given),)
        case _:
            return ()


def _all_reduce(given: int, size: int, low: int, high: int) -> tuple[Cost, ...]:
    """The costs of an all-reduce. Where the size is no power of two, the ranks above the last one
    hand theirs in before, and get the result after it."""
    extra = 0 if low == high else 2
    whole = 1 << low
    return (
        Cost("ring", 2 * (size - 1), 2 * _share(given, size)),
        Cost("doubling", low + extra, (low + extra) * given),
        Cost("halving", 2 * low + extra, 2 * _share(given, whole) + extra * given),
        Cost("tree", 2 * high, 2 * high * given),
    )


def _all_to_all(
    signature: Signature, given: int, size: int, place: int, high: int
) -> tuple[Cost, ...]:
    dtype = signature.tensors[0][0] if signature.tensors else "uint8"
    own = signature.sends[place] * item_bytes(dtype) if place < len(signature.sends) else 0
    pairwise = Cost("pairwise", size - 1, given - own)
    even = len(set(signature.sends)) <= 1
    return (pairwise, Cost("bruck", high, high * given / 2)) if even else (pairwise,)


def _share(given: int, size: int) -> float:
    """Returns what is left without one of `size` equal parts."""
    return given * (size - 1) / size


Priced = tuple[int, Sequence[tuple[Cost, float]], float]
"""Bytes, the costs with their times, and the shortest time."""
Span = tuple[int, int]
"""Of the rank with the least, and of the one with the most."""


@dataclass(frozen=True, slots=True, order=True)
class GroupRole:
    """All groups that are the same to the program: they have one name and one size."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Amount:
    """`calls` and `size_bytes` are of one rank (of those that make any), the totals of all. What
    passes the link of a rank one after the other, and the time it takes, are by each algorithm, of
    the rank with the most."""

    calls: Span
    size_bytes: Span
    total_calls: int
    total_bytes: int
    link_bytes: Mapping[str, float]
    time_us: Mapping[str, float]

    @property
    def fastest(self) -> str:
        """The algorithm that takes the least time; "" where nothing is sent."""
        return min(self.time_us, key=self.time_us.__getitem__, default="")


@dataclass(frozen=True, slots=True)
class Row:
    """An op of one role of groups: in the whole run, and in one step."""

    role: GroupRole
    op: str
    ranks: int
    whole: Amount
    step: Amount | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """`groups`: how many there are of each role. `steps`: how often the calls repeat (0: they do
    not). `busiest_us`: the time of all calls of a step (or of the run, where there are no steps) on
    the rank for which it is the most, by the fastest algorithm of each, one after the other.
    `lost` calls of all ranks together are no longer on record, and are not counted."""

    world_size: int
    ranks: int
    link: Link
    groups: Mapping[GroupRole, int]
    rows: Sequence[Row]
    steps: int
    step_calls: Span
    busiest_us: float
    lost: int


@dataclass(slots=True)
class _Sum:
    calls: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    size_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    done: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    """How many of the calls of each rank each algorithm can do."""
    link_bytes: dict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    time_us: dict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))

    def amount(self) -> Amount:
        """Returns the amount of all ranks that are in it, by the algorithms that can do all of
        their calls."""
        able = {
            algorithm
            for algorithm in {name for _, name in self.done}
            if all(self.done.get((rank, algorithm)) == calls for rank, calls in self.calls.items())
        }
        return Amount(
            calls=_span(self.calls.values()),
            size_bytes=_span(self.size_bytes.values()),
            total_calls=sum(self.calls.values()),
            total_bytes=sum(self.size_bytes.values()),
            link_bytes=_most(self.link_bytes, able),
            time_us=_most(self.time_us, able),
        )


def traffic(ranks: Sequence[RankCalls], link: Link | None = None) -> Traffic:
    """The table of these ranks."""
    link = link or Link()
    loops = steps_of(ranks)
    whole: dict[tuple[GroupRole, str], _Sum] = defaultdict(_Sum)
    step: dict[tuple[GroupRole, str], _Sum] = defaultdict(_Sum)
    groups: dict[GroupRole, set[tuple[object, ...]]] = defaultdict(set)
    busiest: dict[int, float] = defaultdict(float)

    @cache
    def priced(signature: Signature, size: int, place: int) -> Priced:
        timed = [(cost, link.time_us(cost)) for cost in costs(signature, size, place)]
        return call_bytes(signature), timed, min((time for _, time in timed), default=0.0)

    for one in ranks:
        names = one.group_names()
        roles = {key: GroupRole(names[key], len(group.ranks)) for key, group in one.groups.items()}
        for key, group in one.groups.items():
            if one.rank in group.ranks:
                # One that was made again, after the first had been destroyed, is another group.
                groups[roles[key]].add((*key, *group.ranks))
        loop = loops.get(one.rank)
        for number, call in enumerate(one.calls):
            role = roles.get(call.group, GroupRole(UNKNOWN, 0))
            place = 0
            if "all_to_all" in call.signature.op and call.group in one.groups:
                members = one.groups[call.group].ranks
                place = members.index(one.rank) if one.rank in members else 0
            price = priced(call.signature, role.size, place)
            _add(whole[role, call.signature.op], one.rank, price)
            if loop is not None and loop.stop - loop.period <= number < loop.stop:
                _add(step[role, call.signature.op], one.rank, price)
                busiest[one.rank] += price[2]
            elif not loops:
                busiest[one.rank] += price[2]
    rows = [
        Row(
            role=role,
            op=op,
            ranks=len(found.calls),
            whole=found.amount(),
            step=step[role, op].amount() if (role, op) in step else None,
        )
        for (role, op), found in sorted(whole.items(), key=lambda item: (item[0][0], item[0][1]))
    ]
    return Traffic(
        world_size=max((one.world_size for one in ranks), default=0),
        ranks=len(ranks),
        link=link,
        groups={role: len(found) for role, found in sorted(groups.items())},
        rows=rows,
        steps=max((loop.times for loop in loops.values()), default=0),
        step_calls=_span(loop.period for loop in loops.values()),
        busiest_us=max(busiest.values(), default=0.0),
        lost=sum(one.lost for one in ranks),
    )


def steps_of(ranks: Sequence[RankCalls]) -> dict[int, Loop]:
    """The training loop in the calls of each rank that has one.

    A rank whose part of a step is twice the same is recognised by the others, which have half as
    many."""
    known: dict[tuple[object, ...], Loop | None] = {}
    found: dict[int, Loop] = {}
    for one in ranks:
        names = one.group_names()
        row = tuple(
            (names.get(call.group), call.signature.op, call.site, call.signature.dtypes)
            for call in one.calls
        )
        if row not in known:
            known[row] = loop_of(row)
        loop = known[row]
        if loop is not None:
            found[one.rank] = loop
    least = min((loop.times for loop in found.values()), default=0)
    for rank, loop in found.items():
        if least and loop.times % least == 0 and loop.times > least:
            found[rank] = Loop(loop.start, loop.period * (loop.times // least), least)
    return found


def _add(total: _Sum, rank: int, price: Priced) -> None:
    size_bytes, timed, _ = price
    total.calls[rank] += 1
    total.size_bytes[rank] += size_bytes
    for cost, time_us in timed:
        total.done[rank, cost.algorithm] += 1
        total.link_bytes[rank, cost.algorithm] += cost.size_bytes
        total.time_us[rank, cost.algorithm] += time_us


def _span(values: Iterable[int]) -> Span:
    found = list(values)
    return (min(found, default=0), max(found, default=0))


def _most(values: Mapping[tuple[int, str], float], of: Container[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (_, algorithm), value in values.items():
        if algorithm in of:
            found[algorithm] = max(found.get(algorithm, 0.0), value)
    return found


@dataclass(frozen=True, slots=True)
class Loop:
    """From the call at `start` on, `period` calls come `times` times."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The number of the first call behind it."""
        return self.start + self.period * self.times


def loop_of(calls: Sequence[Hashable]) -> Loop | None:
    """The repetition that covers most of the calls, of several the one of the shortest period;
    None where nothing comes twice in a row, or that is less than half of it all."""
    numbers: dict[Hashable, int] = {}
    row = [numbers.setdefault(call, len(numbers)) for call in calls]
    best: Loop | None = None
    for period in _periods(row):
        # The first of the longest runs in which each call comes again after `period` others.
        best_start = best_length = start = 0
        for place in range(len(row) - period):
            if row[place] != row[place + period]:
                start = place + 1
            elif place + 1 - start > best_length:
                best_start, best_length = start, place + 1 - start
        times = best_length // period + 1
        found = Loop(best_start, period, times) if times > 1 else None
        if found is None:
            continue
        if best is None or (found.times * period, -period) > (
            best.times * best.period,
            -best.period,
        ):
            best = found
    if best is None or best.times * best.period * 2 < len(row):
        return None
    return best


def _periods(row: Sequence[int]) -> list[int]:
    """Distances at which calls come again, those that cover most first."""
    last: dict[int, int] = {}
    covered: Counter[int] = Counter()
    for place, call in enumerate(row):
        if call in last:
            covered[place - last[call]] += place - last[call]
        last[call] = place
    return [period for period, _ in covered.most_common(MOST_PERIODS)]


SCHEMA = "distdebug.traffic/1"
MOST_ROWS = 40


def as_json(traffic: Traffic) -> dict[str, Any]:
    """Returns what plan.json and `report --traffic --json` hold; times in microseconds."""
    return {
        "schema": SCHEMA,
        "world_size": traffic.world_size,
        "ranks": traffic.ranks,
        "link": {
            "latency_us": traffic.link.latency_us,
            "bandwidth_gbs": traffic.link.bandwidth_gbs,
        },
        "steps": {"times": traffic.steps, "calls": list(traffic.step_calls)},
        "busiest_rank_us": round(traffic.busiest_us, 3),
        "lost_calls": traffic.lost,
        "groups": [
            {"group": role.name, "size": role.size, "groups": count}
            for role, count in traffic.groups.items()
        ],
        "rows": [_row(row, traffic.groups) for row in traffic.rows],
    }


def _row(row: Row, groups: Mapping[GroupRole, int]) -> dict[str, Any]:
    return {
        "group": row.role.name,
        "size": row.role.size,
        "groups": groups.get(row.role, 0),
        "op": row.op,
        "ranks": row.ranks,
        "whole": _amount(row.whole),
        "step": None if row.step is None else _amount(row.step),
    }


def _amount(amount: Amount) -> dict[str, Any]:
    return {
        "calls": list(amount.calls),
        "bytes": list(amount.size_bytes),
        "total_calls": amount.total_calls,
        "total_bytes": amount.total_bytes,
        "link_bytes": {name: round(value) for name, value in amount.link_bytes.items()},
        "time_us": {name: round(value, 3) for name, value in amount.time_us.items()},
        "fastest": amount.fastest,
    }


def lines(traffic: Traffic) -> Iterator[str]:
    """The table for people."""
    a_step = traffic.steps > 0
    if not traffic.rows:
        yield "no call is on record"
        return
    what = "in one step" if a_step else "in the whole run"
    yield f"calls and bytes {what}, of each rank that makes them"
    if a_step:
        calls = span_text(traffic.step_calls, str)
        yield f"  a step is what repeats: {calls} call{'s' * (calls != '1')}, {traffic.steps} times"
    cells = [("group", "op", "calls", "bytes", "on its link", "takes", "by")]
    shown = [row for row in traffic.rows if row.step is not None] if a_step else traffic.rows
    for row in list(shown)[:MOST_ROWS]:
        amount = row.step if a_step and row.step is not None else row.whole
        by = amount.fastest
        cells.append(
            (
                role_text(row.role, traffic.groups.get(row.role, 0)),
                row.op,
                span_text(amount.calls, str),
                span_text(amount.size_bytes, bytes_text),
                bytes_text(amount.link_bytes[by]) if by else "-",
                time_text(amount.time_us[by]) if by else "-",
                by,
            )
        )
    yield from aligned(cells)
    if len(shown) > MOST_ROWS:
        yield f"  ... and {len(shown) - MOST_ROWS} more rows in the JSON"
    if a_step and (others := len(traffic.rows) - len(shown)):
        yield (
            f"  outside the steps: {_others(traffic)} ({others} more in the JSON)"
            if (others > 1)
            else f"  outside the steps: {_others(traffic)}"
        )
    yield (
        f"  on links of {traffic.link} the rank with the most takes "
        f"{time_text(traffic.busiest_us)} {'a step' if a_step else 'in all'}, one call after the "
        "other"
    )
    if traffic.lost:
        yield f"  no longer on record, and not counted: {counted(traffic.lost, 'call')}"


def aligned(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows, names to the left and numbers to the right of their columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        parts = [
            f"{cell:<{width}}" if column < 2 or column == 6 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "   ".join(parts)).rstrip()


def _others(traffic: Traffic) -> str:
    row = next(row for row in traffic.rows if row.step is None)
    return f"{row.op} of {role_text(row.role, traffic.groups.get(row.role, 0))}"


def role_text(role: GroupRole, count: int = 0) -> str:
    """`mesh_tp (8 ranks) x 128`."""
    times = f" x {count:,}" if count > 1 else ""
    return f"{role.name} ({role.size:,} rank{'' if role.size == 1 else 's'}){times}"


def span_text(span: Span, text: Callable[[int], str]) -> str:
    """`4`, or `2 to 4` where ranks differ."""
    least, most = map(text, span)
    return least if least == most else f"{least} to {most}"


def bytes_text(count: float) -> str:
    """`512 B`, `1.5 KiB`, `2.0 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


def time_text(time_us: float) -> str:
    """`12.0 us`, `1.5 ms`, `2.0 s`."""
    if time_us < 1000:
        return f"{time_us:.1f} us"
    return f"{time_us / 1e3:.1f} ms" if time_us < 1e6 else f"{time_us / 1e6:.1f} s"

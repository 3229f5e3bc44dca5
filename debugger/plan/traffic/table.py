"""Adds up the calls of all ranks: by group (as a role: "mesh_tp" of 8 ranks, 128 times), op and
step, with what a link of given latency and bandwidth would need for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ...record.signature import Signature, call_bytes
from ..limits import MOST_PERIODS
from .calls import UNKNOWN, RankCalls
from .costs import Cost, Link, costs

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
        found = _longest(row, period)
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


def _longest(row: Sequence[int], period: int) -> Loop | None:
    """The first of the longest runs in which each call comes again after `period` others."""
    best_start = best_length = start = 0
    for place in range(len(row) - period):
        if row[place] != row[place + period]:
            start = place + 1
        elif place + 1 - start > best_length:
            best_start, best_length = start, place + 1 - start
    times = best_length // period + 1
    return Loop(best_start, period, times) if times > 1 else None

"""Looks for an order of a plan in which ranks are stuck, and plans the programs in that order.

Two things are not known of programs that were planned once: what a rank does after a receive that
was in vain in the order which was met, and whether it does something else where a message comes
from another rank. So nothing is told of an order before the ranks have run in it.

What a rank does depends on more than messages: on what it is told where it asks whether a call is
over (a plan says no once), and on which of two threads comes first to a group. Each such choice is
made otherwise, alone and then with others, and the ranks are planned again: first those of lines
that were not tried yet. A choice counts where it can be, and the ranks make other calls by it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..diagnosis.diagnose import verdict
from ..diagnosis.facts.blocking import Model, backend_of
from ..diagnosis.findings import Finding
from ..diagnosis.limits import SECOND_NS
from ..diagnosis.story import step
from ..record.snapshot import Call, CallSite, GroupKey
from ..record.wording import at_site, counted, ranks_text
from .judgement import Judgement, judge_programs
from .limits import MOST_BACK
from .orders import Hold, Order, OrderCount, explore, follow, in_turn, last_first
from .program import CutOff, Event, Made, Program, Waited
from .simulation import Simulation

PlanAgain = Callable[[Sequence[str]], Mapping[int, Program]]
"""Runs the ranks again, with these faults (as `--inject` takes them)."""


@dataclass(frozen=True, slots=True)
class OtherWay:
    """A choice that was planned in another way: `call` of `rank` comes after its call `after`, of
    another of its threads, which is its call `its` then; without that it is over when the rank asks
    whether it is. `lines`: of these calls; `told`: that in words."""

    rank: int
    call: int
    after: int | None
    its: int
    lines: tuple[CallSite | None, ...] = field(compare=False)
    told: str = field(compare=False)

    def clashes(self, other: OtherWay) -> bool:
        """Whether the two are of calls that may have other numbers by one of them."""
        threads = self.after is not None or other.after is not None
        return threads and self.rank == other.rank

    def __str__(self) -> str:
        """Returns it as `--inject` takes it."""
        if self.after is None:
            return f"finish(rank={self.rank}) @ call {self.call}"
        return str(Hold((self.rank,), self.call, self.rank, self.its))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The orders of a plan. `planned`: in how many the ranks have run. `depends`: what they do
    depends on the order, so that no others are known. `judgement`: of one in which ranks are stuck,
    which `faults` bring about in a run."""

    count: OrderCount
    planned: int
    depends: bool = False
    judgement: Judgement | None = None
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns how many there are, and in how many of them ranks are stuck."""
        if self.depends:
            return f"1 of {counted(self.planned, 'order')} that were planned"
        least = "" if self.count.exact else "at least "
        stuck = f"{least if self.count.stuck else ''}{self.count.stuck:,}"
        return f"{stuck} of {least}{counted(self.count.total, 'order')}"


def look_for_orders(
    programs: Mapping[int, Program], model: Model, plan_again: PlanAgain, until_s: float
) -> Schedule:
    """Returns what the orders come to, as far as there is time (`time.monotonic()`)."""
    result: Schedule | None = None
    todo: deque[tuple[Sequence[OtherWay], Mapping[int, Program]]] = deque([((), programs)])
    tried = {frozenset[OtherWay]()}
    impossible: set[tuple[CallSite | None, ...]] = set()
    while todo and (result is None or time.monotonic() < until_s):
        chosen, before = todo.popleft()
        if chosen and chosen[-1].lines in impossible:
            continue
        known = plan_again(list(map(str, chosen))) if chosen else programs
        if chosen and not _can_be(chosen[-1], before, known, model):
            impossible.add(chosen[-1].lines)
            continue
        if chosen and _calls(known) == _calls(before):
            continue
        for one in _choices(known):
            made = frozenset((*chosen, one))
            if made not in tried and not any(one.clashes(other) for other in chosen):
                tried.add(made)
                todo.append(((*chosen, one), known))
        now_s = time.monotonic()
        limit_s = now_s + (until_s - now_s) / 2 if todo else until_s
        planned = result.planned if result is not None else 0
        found = _look_for_messages(known, model, plan_again, limit_s, chosen, planned)
        if found.judgement is not None or (result is None and found.count.all_stuck):
            return found
        if result is None:
            result = found
        else:
            result = replace(result, planned=found.planned, depends=True)
    assert result is not None
    return result


def _choices(programs: Mapping[int, Program]) -> list[OtherWay]:
    """Returns what may be otherwise; those of lines that others have had before come last."""
    found: list[OtherWay] = []
    for rank, program in programs.items():
        made: dict[GroupKey, list[Call]] = {}
        lines: set[tuple[CallSite | None, ...]] = set()
        calls = [event.call for event in program.events if isinstance(event, Made)]
        for place, call in enumerate(calls):
            if call.number in program.asked and _may_be_asked(call, program):
                told = f"{_in_words(rank, call)} is over when the rank asks whether it is"
                found.append(OtherWay(rank, call.number, None, 0, (call.site,), told))
            row = made.setdefault(call.group, [])
            if call.signature.peer is not None:
                continue
            row.append(call)
            for at in range(len(row) - 2, max(-1, len(row) - MOST_BACK), -1):
                held = row[at]
                both = (held.site, call.site)
                if held.thread == call.thread or both in lines:
                    continue
                behind = sorted(row[at:], key=lambda one: one.thread == row[at].thread)
                if [one.signature for one in behind] == [one.signature for one in row[at:]]:
                    continue
                lines.add(both)
                since = calls[calls.index(held, 0, place) + 1 : place + 1]
                its = held.number + sum(one.thread != held.thread for one in since)
                told = f"{_in_words(rank, held)} comes after its call {its}{at_site(call.site)}"
                told += ", which another thread makes"
                found.append(OtherWay(rank, held.number, call.number, its, both, told))
    seen: Counter[object] = Counter()
    order = []
    for choice in found:
        order.append(seen[choice.lines])
        seen[choice.lines] += 1
    return [choice for _, choice in sorted(zip(order, found, strict=True), key=lambda row: row[0])]


def _in_words(rank: int, call: Call) -> str:
    return f"in that order call {call.number} of rank {rank}{at_site(call.site)}"


def _may_be_asked(call: Call, program: Program) -> bool:
    """Whether the backend says that a call is over before it was waited for: gloo does not say so
    of messages."""
    group = program.groups.get(call.group)
    messages = call.signature.peer is not None
    return group is not None and not (
        messages and backend_of(group.backend, call.signature) == "gloo"
    )


def _can_be(
    choice: OtherWay, before: Mapping[int, Program], known: Mapping[int, Program], model: Model
) -> bool:
    """Whether the rank comes to make this choice, without what comes after it; `before`: the
    programs without it, `known`: as they were planned with it."""
    rank, call, after = choice.rank, choice.call, choice.after
    if after is None:
        simulation = Simulation(known, replace(model, in_order=True), SECOND_NS)
        simulation.run()
        own = simulation.ranks[rank].own_number(call)
        return own is not None and simulation.ranks[rank].done_ns(own) > 0
    program = before[rank]
    made = [one.call for one in program.events if isinstance(one, Made)]
    at, held = next(
        (at, one.call)
        for at, one in enumerate(program.events)
        if isinstance(one, Made) and one.call.number == call
    )
    threads = {one.number: one.thread for one in made}
    main = min(threads.values())

    def is_others(event: Event) -> bool:
        number = event.call.number if isinstance(event, Made) else None
        number = event.number if isinstance(event, Waited) else number
        return (main if number is None else threads.get(number, main)) != held.thread

    events = [*program.events[:at], *filter(is_others, program.events[at:])]
    without = {**before, rank: replace(program, events=events)}
    simulation = Simulation(without, model, SECOND_NS)
    simulation.run()
    came = simulation.ranks[rank].own_number(after) is not None
    # The thread that was held went on: it has made its call as well.
    ends = {one.number for one in made if one.number <= after and one.site == held.site}
    again = [one for one in known[rank].events if isinstance(one, Made)]
    return came and sum(one.call.site == held.site for one in again) >= len(ends)


def _calls(programs: Mapping[int, Program]) -> Mapping[int, Sequence[Hashable]]:
    """Returns what each rank calls, from whatever thread and line."""
    return {
        rank: [
            (one.call.group, one.call.signature, one.call.is_async)
            for one in program.events
            if isinstance(one, Made)
        ]
        for rank, program in programs.items()
    }


def _look_for_messages(
    programs: Mapping[int, Program],
    model: Model,
    plan_again: PlanAgain,
    until_s: float,
    chosen: Sequence[OtherWay],
    planned: int,
) -> Schedule:
    """Returns what the orders of messages come to. `programs`: as they are with these choices;
    `planned`: in so many orders they were planned before."""
    tried: set[tuple[str, ...]] = set()
    depends = bool(chosen)
    first = tuple(map(str, chosen))
    if chosen:
        found = judge_programs(programs, model)
        if verdict(found.findings) is not None:
            schedule = Schedule(OrderCount(1, 1, False), planned + 1, depends, faults=first)
            order = Order(programs, (), True, {})
            findings = [
                _with_order(one, schedule, order, programs, chosen) for one in found.findings
            ]
            return replace(schedule, judgement=replace(found, findings=findings))
    while True:
        now_s = time.monotonic()
        count = explore(programs, model, now_s + (until_s - now_s) / 3)
        schedule = Schedule(count, planned + len(tried) + 1, depends)
        if count.exact and (count.total == 1 or count.all_stuck):
            return schedule  # nothing depends on the order
        known = count.unknown or count.shortest
        order = follow(programs, model, in_turn(known) if known else last_first)
        faults = (*first, *map(str, order.holds))
        if faults == first or faults in tried or time.monotonic() >= until_s:
            return schedule
        tried.add(faults)
        again = plan_again(faults)
        schedule = replace(schedule, planned=planned + len(tried) + 1)
        more = _longer(programs, again)
        if count.unknown is None and (more is None or known):
            its = model if order.buffered else replace(model, buffered_bytes=0)
            found = judge_programs(again, its)
            is_shown = verdict(found.findings) is not None and _went_on(order, again)
            # A planned receive takes its message as it is waited for. So this may be another order,
            # in which the ranks have seen the same up to where they are stuck.
            if not is_shown and known and more is not None:
                is_shown = all(
                    again[rank].came_from.get(call) == source
                    for (rank, call), source in order.seen.items()
                )
                found = judge_programs(order.programs, its)
            if is_shown:
                schedule = replace(schedule, depends=depends or more is None, faults=faults)
                findings = [
                    _with_order(one, schedule, order, again, chosen) for one in found.findings
                ]
                return replace(schedule, judgement=replace(found, findings=findings))
        if more is not None and count.unknown is None:
            return schedule
        depends = depends or more is None
        programs = more or again


def _went_on(order: Order, programs: Mapping[int, Program]) -> bool:
    """Whether all who were held have gone on: else others may be stuck by that."""
    made = {
        rank: sum(isinstance(event, Made) for event in program.events)
        for rank, program in programs.items()
    }
    return all(made[rank] > hold.call for hold in order.holds for rank in hold.ranks)


def _longer(
    programs: Mapping[int, Program], again: Mapping[int, Program]
) -> Mapping[int, Program] | None:
    """Returns of each rank the program that is known further; None where the two are not the
    same so far."""
    found = {}
    for rank, program in programs.items():
        known = sorted((program, again[rank]), key=_known_length)
        shorter, longer = (list(map(_content, one.events[: _known_length(one)])) for one in known)
        if shorter != longer[: len(shorter)]:
            return None
        if len(shorter) < len(longer) and not isinstance(known[0].events[-1], CutOff):
            return None
        found[rank] = known[1] if len(shorter) < len(longer) else program
    return found


def _known_length(program: Program) -> int:
    return len(program.events) - isinstance(program.events[-1], CutOff)


def _content(event: Event) -> Hashable:
    if isinstance(event, Made):
        call = event.call
        return (call.number, call.group, call.signature, call.is_async, call.site)
    return (event.number, event.site) if isinstance(event, Waited) else type(event).__name__


@step("orders")
def _with_order(
    finding: Finding,
    schedule: Schedule,
    order: Order,
    programs: Mapping[int, Program],
    chosen: Sequence[OtherWay],
) -> Finding:
    calls = {
        (rank, event.call.number): event.call
        for rank, program in programs.items()
        for event in program.events
        if isinstance(event, Made)
    }
    lines = [one.told for one in chosen]
    for hold in order.holds:
        own, its = calls.get((hold.ranks[0], hold.call)), calls.get((hold.until, hold.its))
        lines.append(
            f"in that order call {hold.call} of {ranks_text(hold.ranks)}"
            f"{at_site(own.site) if own else ''} comes after rank {hold.until} has come to its "
            f"call {hold.its}{at_site(its.site) if its else ''}"
        )
    flags = " ".join(f"--inject '{fault}'" for fault in schedule.faults)
    lines.append(f"to bring it about: distdebug run {flags}")
    return replace(
        finding,
        message=f"in {schedule}: {finding.message}",
        headline=f"in {schedule}: {finding.headline or finding.message}",
        details=[*finding.details, *lines],
    )

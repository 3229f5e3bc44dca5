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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..diagnosis.facts.blocking import Model, backend_of
from ..diagnosis.findings import Finding
from ..diagnosis.limits import SECOND_NS
from ..diagnosis.story import step
from ..record.snapshot import Call, CallSite, GroupKey
from ..record.wording import at_site, counted, ranks_text
from .judgement import Judgement, judge_programs
from .limits import MOST_BACK
from .orders import Hold, OrderCount, explore, follow
from .program import Created, CutOff, Event, Program
from .simulation import Simulation

PlanAgain = Callable[[Sequence[str]], Mapping[int, Program]]
"""Runs the ranks again, with these faults (as `--inject` takes them)."""


@dataclass(frozen=True, slots=True)
class OtherWay:
    """A choice that was planned in another way, by `fault`: `call` of `rank` is over when the rank
    asks whether it is, or comes after a call of another thread, as the rank's call `its`. `lines`:
    of these calls; `told`: that in words."""

    rank: int
    call: int
    fault: str
    its: int | None
    lines: tuple[CallSite | None, ...] = field(compare=False)
    told: str = field(compare=False)

    def clashes(self, other: OtherWay) -> bool:
        """Whether the two are of calls that may have other numbers by one of them."""
        return self.rank == other.rank and (self.its, other.its) != (None, None)


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
        known = plan_again([one.fault for one in chosen]) if chosen else programs
        if chosen and not _can_be(chosen[-1], known, model):
            impossible.add(chosen[-1].lines)
            continue
        if chosen and all(_called(before[rank]) == _called(one) for rank, one in known.items()):
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
    seen: Counter[object] = Counter()

    def turn(choice: OtherWay) -> int:
        seen[choice.lines] += 1
        return seen[choice.lines]

    return sorted((one for row in programs.values() for one in _choices_of(row)), key=turn)


def _choices_of(program: Program) -> Iterator[OtherWay]:
    rank = program.rank
    made: dict[GroupKey, list[Call]] = {}
    lines: set[tuple[CallSite | None, ...]] = set()
    calls = program.calls
    for place, call in enumerate(calls):
        if call.number in program.asked and _may_be_asked(call, program):
            told = f"call {call.number} of rank {rank}{at_site(call.site)} is over when the rank "
            told += "asks whether it is"
            fault = f"finish(rank={rank}) @ call {call.number}"
            yield OtherWay(rank, call.number, fault, None, (call.site,), told)
        if call.signature.peer is not None:
            continue
        row = made.setdefault(call.group, [])
        row.append(call)
        recent = row[1 - MOST_BACK :]
        for at, held in reversed([*enumerate(recent[:-1])]):
            both = (held.site, call.site)
            if held.thread == call.thread or both in lines:
                continue
            since = recent[at:]
            then = sorted(since, key=lambda one: one.thread == held.thread)
            if [one.signature for one in then] == [one.signature for one in since]:
                continue
            lines.add(both)
            behind = [one for one in calls[: place + 1] if one.number > held.number]
            its = held.number + sum(one.thread != held.thread for one in behind)
            told = f"call {held.number} of rank {rank}{at_site(held.site)} comes after its call "
            told += f"{its}{at_site(call.site)}, which another thread makes"
            fault = str(Hold((rank,), held.number, rank, its))
            yield OtherWay(rank, held.number, fault, its, both, told)


def _may_be_asked(call: Call, program: Program) -> bool:
    """Whether the backend says that a call is over before it was waited for: gloo does not say so
    of messages."""
    group = program.groups.get(call.group)
    messages = call.signature.peer is not None
    return group is not None and not (
        messages and backend_of(group.backend, call.signature) == "gloo"
    )


def _can_be(choice: OtherWay, programs: Mapping[int, Program], model: Model) -> bool:
    """Whether the rank comes to make this choice; `programs`: as they were planned with it."""
    its = choice.its
    simulation = Simulation(programs, replace(model, in_order=its is None), SECOND_NS)
    simulation.run()
    standing = simulation.ranks[choice.rank]
    if its is None:
        own = standing.own_number(choice.call)
        return own is not None and standing.done_ns(own) > 0
    # The other thread comes to its call, and the one that was held goes on.
    behind = programs[choice.rank].calls[its:]
    is_behind = any(call.site == choice.lines[0] for call in behind)
    return is_behind and standing.own_number(its - 1) is not None


def _called(program: Program) -> list[Hashable]:
    """Returns what the rank calls, from whatever thread and line."""
    return [(call.group, call.signature, call.is_async) for call in program.calls]


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
    first = tuple(one.fault for one in chosen)
    depends = bool(chosen)
    if chosen:
        found = judge_programs(programs, model)
        if found.verdict is not None:
            schedule = Schedule(OrderCount(1, 1, False), planned + 1, depends, faults=first)
            return _told(schedule, found, chosen, (), programs)
    tried = {first}
    while True:
        now_s = time.monotonic()
        count = explore(programs, model, now_s + (until_s - now_s) / 3)
        schedule = Schedule(count, planned + len(tried), depends)
        if count.exact and (count.total == 1 or (count.all_stuck and len(tried) > 1)):
            return schedule  # nothing depends on the order, as one more has shown
        known = count.unknown or count.shortest
        order = follow(programs, model, known)
        holds = order.holds()
        faults = (*first, *map(str, holds))
        if faults in tried or time.monotonic() >= until_s:
            return schedule
        tried.add(faults)
        again = plan_again(faults)
        schedule = replace(schedule, planned=planned + len(tried), faults=faults)
        more = _longer(programs, again)
        depends = depends or more is None
        if count.unknown is None and (more is None or known):
            its = replace(model, buffered_bytes=0) if order.sends_wait else model
            found = judge_programs(again, its)
            # Where one who was held has not gone on, others may be stuck by that.
            went_on = all(
                len(again[rank].calls) > hold.call for hold in holds for rank in hold.ranks
            )
            is_shown = found.verdict is not None and went_on
            # A planned receive takes its message as it is waited for. So this may be another order,
            # in which the ranks have seen the same up to where they are stuck.
            if not is_shown and known and more is not None:
                is_shown = all(
                    order.seen(rank).items() <= program.came_from.items()
                    for rank, program in again.items()
                )
                followed = {
                    rank: replace(program, came_from=order.sources(rank))
                    for rank, program in programs.items()
                }
                found = judge_programs(followed, its)
            if is_shown and not (count.all_stuck and more is not None):
                schedule = replace(schedule, depends=depends)
                return _told(schedule, found, chosen, holds, again)
        if more is not None and count.unknown is None:
            return replace(schedule, faults=())
        programs = more or again


def _longer(
    programs: Mapping[int, Program], again: Mapping[int, Program]
) -> Mapping[int, Program] | None:
    """Returns of each rank the program that is known further; None where the two are not the
    same so far."""
    found = {}
    for rank, program in programs.items():
        one, other = _known(program), _known(again[rank])
        if any(event != its for event, its in zip(one, other, strict=False)):
            return None
        found[rank] = again[rank] if len(other) > len(one) else program
    return found


def _known(program: Program) -> list[Event]:
    """Returns all that is known that the rank does, whenever that is."""
    return [
        Created(replace(event.creation, time_ns=0)) if isinstance(event, Created) else event
        for event in program.events
        if not isinstance(event, CutOff)
    ]


def _told(
    schedule: Schedule,
    found: Judgement,
    chosen: Sequence[OtherWay],
    holds: Sequence[Hold],
    programs: Mapping[int, Program],
) -> Schedule:
    """Returns the schedule with what was found in the order of these choices and holds."""
    sites = {
        (rank, call.number): call.site
        for rank, program in programs.items()
        for call in program.calls
    }
    lines = [one.told for one in chosen]
    for hold in holds:
        own, its = (hold.ranks[0], hold.call), (hold.until, hold.its)
        lines.append(
            f"call {hold.call} of {ranks_text(hold.ranks)}{at_site(sites.get(own))} comes after "
            f"rank {hold.until} has come to its call {hold.its}{at_site(sites.get(its))}"
        )
    flags = " ".join(f"--inject '{fault}'" for fault in schedule.faults)
    lines = [*(f"in that order {line}" for line in lines)]
    lines.append(f"to bring it about: distdebug run {flags}")
    findings = [_in_order(one, schedule, lines) for one in found.findings]
    return replace(schedule, judgement=replace(found, findings=findings))


@step("orders")
def _in_order(finding: Finding, schedule: Schedule, lines: Sequence[str]) -> Finding:
    return replace(
        finding,
        message=f"in {schedule}: {finding.message}",
        headline=f"in {schedule}: {finding.headline or finding.message}",
        details=[*finding.details, *lines],
    )

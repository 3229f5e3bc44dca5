"""Looks for an order of a plan in which ranks are stuck, and plans the programs in that order.

Two things are not known of programs that were planned once: what a rank does after a receive that
was in vain in the order which was met, and whether it does something else where a message comes
from another rank. So nothing is told of an order before the ranks have run in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.diagnose import verdict
from ..diagnosis.facts.blocking import Model
from ..diagnosis.findings import Finding
from ..diagnosis.story import step
from ..record.wording import at_site, counted, ranks_text
from .judgement import Judgement, judge_programs
from .orders import Order, OrderCount, explore, follow, in_turn, last_first, with_sources
from .program import CutOff, Event, Made, Program, Waited

PlanAgain = Callable[[Sequence[str]], Mapping[int, Program]]
"""Runs the ranks again, with these faults (as `--inject` takes them)."""


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
    tried: set[tuple[str, ...]] = set()
    depends = False
    while True:
        now_s = time.monotonic()
        count = explore(programs, model, now_s + (until_s - now_s) / 3)
        schedule = Schedule(count, len(tried) + 1, depends)
        if count.exact and (count.total == 1 or count.stuck == count.total):
            return schedule  # nothing depends on the order
        known = count.unknown or count.shortest
        order = follow(programs, model, in_turn(known) if known else last_first)
        faults = tuple(map(str, order.holds))
        if not faults or faults in tried or time.monotonic() >= until_s:
            return schedule
        tried.add(faults)
        again = plan_again(faults)
        schedule = replace(schedule, planned=len(tried) + 1)
        more = _longer(programs, again)
        if count.unknown is None and (more is None or known):
            its = model if order.buffered else replace(model, buffered_bytes=0)
            sourced = {rank: with_sources(one, one.came_from) for rank, one in again.items()}
            found = judge_programs(sourced, its)
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
                findings = [_with_order(one, schedule, order, again) for one in found.findings]
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
    finding: Finding, schedule: Schedule, order: Order, programs: Mapping[int, Program]
) -> Finding:
    calls = {
        (rank, event.call.number): event.call
        for rank, program in programs.items()
        for event in program.events
        if isinstance(event, Made)
    }
    lines = []
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

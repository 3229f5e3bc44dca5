"""Delta debugging of the programs of a run: fewer ranks and calls, as long as the simulation comes
to the same finding.

Which calls are left out at once follows Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input" (IEEE Transactions on Software Engineering 28(2), 2002): `ddmin`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TypeVar

from ...diagnosis.facts.blocking import Model
from ...diagnosis.findings import Finding
from ...plan.classes import classes
from ...plan.judgement import judge_programs
from ...record.wording import counted
from .recorded import Aim
from .smaller import Programs, by_world, ended, of_ranks, synchronous, units, with_units

Item = TypeVar("Item")
FEW = 4
"""The most ranks that a small program is meant to have."""


def ddmin(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> Sequence[Item]:
    """Returns some of the items, in their order, for which `fails` is still true, as it is for all
    of them, and none of which can be left out by itself. Cost: at most n² + 3n calls of `fails`,
    and about 2 log n where one item does."""
    if fails(()):
        return ()
    parts = 2
    while len(items) > 1:
        size = ceil(len(items) / parts)
        cuts = range(0, len(items), size)
        tried = [items[at : at + size] for at in cuts]
        if len(cuts) > 2:  # of two parts each is what the other one leaves
            tried += [[*items[:at], *items[at + size :]] for at in cuts]
        fewer = next(filter(fails, tried), None)
        if fewer is not None:
            parts = 2 if len(fewer) <= size else max(parts - 1, 2)
            items = fewer
        elif parts < len(items):
            parts = min(2 * parts, len(items))
        else:
            break
    return items


@dataclass(frozen=True, slots=True)
class Reduced:
    """Programs that lead to the finding: `culprits` are the ranks to blame, by their numbers
    here."""

    programs: Programs
    culprits: frozenset[int]

    def __str__(self) -> str:
        return f"{counted(len(self.programs), 'rank')}, {counted(self.calls, 'call')}"

    @property
    def calls(self) -> int:
        """Counts the calls that all ranks make together."""
        return sum(len(one.calls) for one in self.programs.values())


class Reducer:
    """Makes programs smaller until the time is up. `model`: of blocking, in which they fail."""

    def __init__(self, aim: Aim, model: Model, limit_s: float) -> None:
        self._aim = aim
        self._model = model
        self._end_s = time.monotonic() + limit_s
        self._first: Finding | None = None
        self._last = Reduced({}, frozenset())

    def begins_with(self, first: Reduced) -> bool:
        """Whether the programs as they were recorded come to the finding. It must be asked first:
        smaller ones have to come to one that is like theirs."""
        self._first = self._found(first)
        return self._first is not None

    def _found(self, one: Reduced) -> Finding | None:
        judgement = judge_programs(one.programs, self._model)
        warnings = (one for one in judgement.findings if one.about.at_once)
        found = judgement.verdict or next(warnings, None)
        fits = (
            found is not None
            and found.about is self._aim.kind
            and frozenset(found.culprits) == one.culprits
            and (not self._aim.parted or "parted_at" in found.data)
        )
        return found if fits else None

    def fails(self, one: Reduced) -> bool:
        """Whether the ranks come to the finding, the same are to blame, and it is about such calls
        as at first: of other ops, or of none, it would be another fault of the same kind. Where it
        is not about calls, one is left, so that it still is a matter of ranks."""
        if not self._aim.kind.by_calls and not one.calls:
            return False
        found, first = self._found(one), self._first
        return (
            found is not None
            and first is not None
            and (found.seq is None) == (first.seq is None)
            and _ops(found) <= _ops(first)
        )

    def steps(self, first: Reduced) -> Iterator[Reduced]:
        """Yields what is left, smaller each time; `first` fails."""
        self._last, before = first, None
        while self._last is not before:
            before = self._last
            alone = partial(self._events, alone=True)
            for leave_out in (self._ranks, self._events, alone, self._simplify):
                last = self._last
                leave_out(last)
                if self._last is not last:
                    yield self._last

    def _try(self, programs: Programs, culprits: frozenset[int]) -> bool:
        """Keeps the programs, if they come to the finding."""
        one = Reduced(programs, culprits)
        fails = time.monotonic() < self._end_s and self.fails(one)
        if fails:
            self._last = one
        return fails

    def _ranks(self, last: Reduced) -> None:
        """Tries first whom the finding names, and a few that the others are like."""

        def fails(kept: Sequence[int], by_role: bool = False) -> bool:
            kept = sorted(kept)
            culprits = frozenset(kept.index(one) for one in last.culprits if one in kept)
            if len(kept) < 2 or bool(culprits) != bool(last.culprits):
                return False
            return self._try(of_ranks(last.programs, kept, by_role=by_role), culprits)

        everyone = list(last.programs)
        alike = [rank for row in classes(last.programs) for rank in row.ranks[:FEW]]
        likely = list(dict.fromkeys([*sorted(last.culprits), *alike]))
        few = [likely[:size] for size in range(2, min(FEW + 1, len(everyone)))]
        if not any(fails(kept, by_role) for by_role in (False, True) for kept in few):
            ddmin(everyone, fails)

    def _events(self, last: Reduced, *, alone: bool = False) -> None:
        every = units(last.programs)
        if alone:
            every = [[one] for unit in every for one in unit]
        ddmin(every, lambda kept: self._try(with_units(last.programs, kept), last.culprits))

    def _simplify(self, last: Reduced) -> None:
        ways: list[Callable[[Programs], Programs]] = [by_world, synchronous]
        ways += [partial(ended, rank=rank) for rank in last.programs]
        for way in ways:
            programs = way(self._last.programs)
            if programs != self._last.programs:
                self._try(programs, last.culprits)


def _ops(found: Finding) -> set[str]:
    """The ops of the calls that the finding names."""
    named = (*found.culprits, *found.victims)
    calls = (found.ranks[rank].call for rank in named if rank in found.ranks)
    return {call.partition("(")[0] for call in calls if call}

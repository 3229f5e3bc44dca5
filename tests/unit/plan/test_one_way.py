"""A finding that hangs on what is undecided is a warning; one that is there whatever is decided is
an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from debugger.plan.judgement import judge_programs
from debugger.plan.model import Model
from debugger.plan.one_way import confirmed
from debugger.plan.program import Program, Undecided
from debugger.record.snapshot import CallSite
from tests.support.programs import FILE, Programs
from tests.unit.diagnosis.builder import all_reduce

SAID = Undecided(CallSite(FILE, 40, "train"), "a comparison of loss.item()")


def made(sizes: list[int], *, undecided: bool = True, wrong: bool = False) -> Mapping[int, Program]:
    """Each rank reduces so many elements, and then four; rank 2 five, where it is `wrong`."""
    programs = Programs(len(sizes))
    for rank, size in enumerate(sizes):
        programs[rank].makes(all_reduce(size))
        programs[rank].makes(all_reduce(5 if wrong and rank == 2 else 4))
    programs.end()
    said = (SAID,) if undecided else ()
    return {rank: replace(one, undecided=said) for rank, one in programs.programs().items()}


def nobody() -> Mapping[int, Program]:
    pytest.fail("there is nothing to be planned again for")


def test_what_is_there_only_where_ranks_go_different_ways_is_a_warning() -> None:
    apart, together = made([8, 8, 8, 9]), made([8, 8, 8, 8])
    programs, judgement = confirmed(apart, judge_programs(apart), Model(), lambda: together)
    assert programs is together
    assert judgement.verdict is None
    (found,) = judgement.findings
    assert (found.kind, found.severity, found.proven) == ("shape_mismatch", "warning", False)
    where = "only if ranks go different ways by what is undecided (train.py:40 in train)"
    assert found.message.startswith(where)
    assert [row.site.line for row in judgement.undecided] == [40]


def test_what_comes_behind_it_is_found() -> None:
    apart, together = made([8, 8, 8, 9], wrong=True), made([8, 8, 8, 8], wrong=True)
    _, judgement = confirmed(apart, judge_programs(apart), Model(), lambda: together)
    assert judgement.verdict is not None
    assert judgement.verdict.culprits == (2,)
    assert [(one.severity, one.culprits) for one in judgement.findings] == [
        ("error", (2,)),
        ("warning", (3,)),
    ]


def test_what_is_there_on_one_way_too_stays_an_error() -> None:
    apart, together = made([8, 8, 8, 9]), made([7, 7, 7, 9])
    judged = judge_programs(apart)
    assert confirmed(apart, judged, Model(), lambda: together) == (apart, judged)


def test_ranks_that_could_not_be_planned_again_say_nothing() -> None:
    apart = made([8, 8, 8, 9])
    judged = judge_programs(apart)
    assert confirmed(apart, judged, Model(), dict) == (apart, judged)


@pytest.mark.parametrize(("sizes", "undecided"), [([8, 8, 9], False), ([8, 8, 8], True)])
def test_nothing_is_planned_again_for_nothing(sizes: list[int], undecided: bool) -> None:
    programs = made(sizes, undecided=undecided)
    judged = judge_programs(programs)
    assert confirmed(programs, judged, Model(), nobody) == (programs, judged)

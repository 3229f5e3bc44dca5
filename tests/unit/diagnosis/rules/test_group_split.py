"""Ranks that split a group differently; and those that do it alike, or have not come yet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from distdebug.record.notes import SplitNote

from ..builder import WORLD, Run, barrier

PAIRS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def split(run: Run, parts: Mapping[int, tuple[int, ...]], number: int = 0) -> None:
    for rank, part in parts.items():
        run[rank].notes_down(SplitNote.KIND, group=[WORLD, 0], number=number, ranks=part)


def split_run(parts: Mapping[int, tuple[int, ...]], size: int = 4) -> Run:
    run = Run(size)
    split(run, parts)
    return run


def test_one_rank_has_another_list() -> None:
    run = split_run({**PAIRS, 3: (0, 1, 3)})
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("group_mismatch", (3,), (0, 1, 2))
    assert found.proven
    assert "rank 3 is in [0, 1, 3]" in found.message
    assert found.ranks[3].location.line == 50


def test_the_same_ranks_in_another_order() -> None:
    (found,) = split_run({0: (0, 1, 2), 1: (0, 1, 2), 2: (2, 1, 0)}, 3).errors(settled=False)
    assert found.culprits == (2,)
    assert "rank 2 is in [2, 1, 0]" in found.message


def test_a_rank_that_is_in_no_list_of_its_own() -> None:
    (found,) = split_run({0: (0, 1, 2), 1: (0, 1, 2), 2: ()}, 3).errors(settled=False)
    assert (found.culprits, found.victims) == ((2,), (0, 1))


def test_it_may_be_either_of_two() -> None:
    (found,) = split_run({0: (0, 1), 1: (1,)}, 2).errors()
    assert (found.culprits, found.victims) == ((0, 1), ())


def test_who_has_not_come_yet_may_decide_it() -> None:
    run = split_run({0: (0, 1, 2), 1: (0, 1)}, 3)
    assert run.errors(settled=False) == []
    split(run, {2: (0, 1, 2)})
    (found,) = run.errors(settled=False)
    assert found.culprits == (1,)


def test_what_follows_from_it_is_no_finding_of_its_own() -> None:
    run = split_run({**PAIRS, 3: (0, 1, 3)})
    run[0, 1].calls(barrier(), waits=True)
    run.passes(61)
    (found,) = run.errors()
    assert found.kind == "group_mismatch"


@pytest.mark.parametrize("parts", [PAIRS, {**PAIRS, 2: (), 3: ()}, {0: (0, 1), 3: (2, 3)}])
def test_alike(parts: Mapping[int, tuple[int, ...]]) -> None:
    run = split_run(parts)
    split(run, {0: (0, 2), 2: (0, 2)}, number=1)
    run.passes(10)
    assert run.errors() == []

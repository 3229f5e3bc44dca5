"""Exceptions whose cleanup communicates before they come out; and their twins."""

from __future__ import annotations

from typing import Any

import pytest

from distdebug.record.layout import Activity

from .builder import Run, all_reduce, barrier

ERROR = "KeyError: 'state'"


def unwinds(rank: Any, *, destroys: bool = False, message: str = ERROR) -> None:
    number = len(rank.history.calls) - (0 if destroys else 1)
    rank.notes_down("unwinding", message, 6, call=number, destroys=destroys)


def test_a_barrier_in_finally() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[1, 2].calls(all_reduce(8), waits=True)
    run[0].calls(barrier(), waits=True)
    unwinds(run[0])
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("rank_exception", (0,), (1, 2))
    assert found.message == "rank 0 raised KeyError: 'state' at train.py:6 in step"
    assert found.details[0].startswith("before it could end, its cleanup ran: ranks disagree")
    assert found.ranks[0].location.line == 6


def test_of_two_ranks_the_one_that_raised() -> None:
    run = Run(2)
    run[1].calls(all_reduce(8), waits=True)
    run[0].calls(barrier(), waits=True)
    unwinds(run[0])
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (0,))


def test_the_group_destroyed_in_finally_and_then_the_exception() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[1, 2].calls(all_reduce(8), waits=True)
    unwinds(run[0], destroys=True)
    run[0].destroys()
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (0,))
    run[0].raises(ERROR, 6)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits) == ("rank_exception", (0,))


@pytest.mark.parametrize("joined", [False, True])
def test_a_rank_that_makes_its_group_anew_has_not_ended_of_the_exception(joined: bool) -> None:
    run = Run(2)
    run.each(all_reduce(8))
    run[1].calls(all_reduce(8), waits=True)
    unwinds(run[0], destroys=True)
    run[0].destroys()
    run[0].notes_down("destroyed", line=28)
    if joined:
        run[0].has_group("0", (0, 1), incarnation=1)
        run[0].calls(all_reduce(8), incarnation=1, waits=True)
    else:
        run[0].waits_in(Activity.INIT)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (0,), (1,))
    assert found.details[0] == "rank 0 destroyed the group at train.py:28 in step"


def test_an_exception_long_ago_is_not_the_cause() -> None:
    run = Run(3)
    run.each(barrier())
    for rank in run.ranks.values():
        unwinds(rank)
    for _ in range(4):
        run.each(all_reduce(8))
    run[1, 2].calls(all_reduce(8), waits=True)
    run[0].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("op_mismatch", (0,))


def test_the_same_cleanup_everywhere_is_no_error() -> None:
    run = Run(3)
    run.each(barrier())
    for rank in run.ranks.values():
        unwinds(rank)
        unwinds(rank, destroys=True)
        rank.destroys()
    assert run.errors() == []


def test_a_cleanup_after_lost_contact_is_a_consequence() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[1].calls(all_reduce(8), fails=True)
    run[2].calls(all_reduce(8), waits=True)
    run[0].exits(signal=9)
    unwinds(run[1], destroys=True, message="RuntimeError: Connection closed by peer")
    run[1].destroys()
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (0,))

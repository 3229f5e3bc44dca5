"""Who waits for whom: the graph that people read."""

from __future__ import annotations

from distdebug.diagnosis.facts.waits import waits
from tests.unit.diagnosis.builder import Run, all_reduce, barrier, recv


def test_nobody_waits() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    graph = waits(run.snapshot())
    assert (graph.rows, graph.awaited, graph.cycle) == ({}, {}, ())


def test_those_inside_wait_for_the_one_that_has_not_come() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    run[0, 1, 3].calls(all_reduce(8), waits=True)
    graph = waits(run.snapshot())
    assert sorted(graph.rows) == [0, 1, 3]
    row = graph.rows[0][0]
    assert row.for_ranks == {2}
    assert row.what.startswith('in all_reduce(sum, float32[8]) #1 of group "default_pg"')
    assert graph.awaited == {2: min(rows[0].since_ns for rows in graph.rows.values())}
    assert graph.cycle == ()


def test_a_cycle() -> None:
    run = Run(3)
    run[0].calls(recv(1), waits=True)
    run[1].calls(recv(0), waits=True)
    run[2].calls(barrier(), waits=True)
    for rank in range(3):
        run.ranks[rank].free_threads = 0
    graph = waits(run.snapshot())
    assert graph.cycle == (0, 1)
    assert graph.rows[2][0].for_ranks == {0, 1}


def test_a_rank_with_a_thread_that_may_act_is_in_no_cycle() -> None:
    run = Run(2)
    run[0].calls(recv(1), waits=True)
    run[1].calls(recv(0), waits=True)
    run.ranks[0].free_threads, run.ranks[1].free_threads = 1, 0
    assert waits(run.snapshot()).cycle == ()

"""Which replicas have drifted apart, since when, and who is in the minority."""

from __future__ import annotations

from ..builder import Run, all_reduce


def test_equal_replicas() -> None:
    run = Run(3)
    for moment in range(4):
        for rank in range(3):
            run[rank].steps(moment, [moment, 7])
    assert not run.errors()


def test_the_minority_and_the_first_parameter_that_differs() -> None:
    run = Run(4)
    for rank in range(4):
        run[rank].steps(1, [1, 2, 3])
    for rank in range(4):
        run[rank].steps(5, [1, 99 if rank == 2 else 2, 98 if rank == 2 else 3])
    for rank in range(4):
        run[rank].steps(9, [rank, rank, rank])
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("divergence", (2,), (0, 1, 3))
    assert (found.exit_code, found.proven) == (95, True)
    assert 'replicas differ after optimizer step 2 in group "default_pg"' in found.message
    assert 'parameter "layer1.weight" is the first that does (2 of 3)' in found.message
    assert found.message.index("rank 2 has") < found.message.index("ranks 0,1,3 have")
    assert found.ranks[2].location is not None
    assert found.ranks[2].location.line == 90
    assert found.data == {"step": 2}


def test_without_a_majority_all_are_suspects() -> None:
    run = Run(2)
    for rank in range(2):
        run[rank].steps(1, [rank])
    (found,) = run.errors()
    assert (found.culprits, found.victims) == ((0, 1), ())


def test_a_rank_that_has_not_come_yet_decides_it() -> None:
    """Nothing is said before it has, or is very late."""
    run = Run(3)
    run[0].steps(1, [1])
    run[1].steps(1, [2])
    assert not run.errors()
    run.passes(run.limits.notice_after_s)
    (found,) = run.errors()
    assert found.culprits == (0, 1)
    run[2].steps(1, [2])
    (found,) = run.errors()
    assert found.culprits == (0,)


def test_nobody_waits_for_a_rank_that_has_gone() -> None:
    run = Run(3)
    run[0].steps(1, [1])
    run[1].steps(1, [2])
    run[2].exits(0)
    assert [found.kind for found in run.errors()] == ["divergence"]


def test_nobody_waits_when_the_run_is_over() -> None:
    run = Run(3)
    run[0].steps(1, [1])
    run[1].steps(1, [2])
    run.finished = True
    (found,) = run.errors()
    assert found.culprits == (0, 1)


def test_a_rank_that_left_out_a_step() -> None:
    """Its next step is compared with that of the same moment, not with that of the same number."""
    run = Run(3)
    for moment in (1, 2, 3):
        run[0].steps(moment, [moment])
        run[1].steps(moment, [moment])
        if moment != 2:
            run[2].steps(moment, [10 * moment if moment == 3 else moment])
    (found,) = run.errors()
    assert found.culprits == (2,)
    assert "rank 2 has" in found.message
    assert "after 2 steps" in found.message
    assert "after 3 steps" in found.message


def test_a_rank_whose_inputs_ended_early() -> None:
    """It makes fewer steps, and gets the others' parameters in the end."""
    run = Run(2)
    for moment in range(1, 8):
        run[0].steps(moment, [moment])
        if moment not in (3, 4):
            run[1].steps(moment, [moment])
    assert not run.errors()


def test_several_steps_between_collectives() -> None:
    run = Run(2)
    for rank in range(2):
        for turn in range(3):
            run[rank].steps(5, [turn], turn=turn)
    assert not run.errors()
    for rank in range(2):
        run[rank].steps(5, [rank], turn=3)
    assert [found.kind for found in run.errors()] == ["divergence"]


def test_other_parameters_are_not_compared() -> None:
    """The stages of a pipeline, say."""
    run = Run(2)
    for rank in range(2):
        run[rank].steps(1, [rank], key=f"stage {rank}")
        run[rank].steps(1, [5], key="shared")
    assert not run.errors()


def test_a_mismatch_that_follows_is_a_finding_of_its_own() -> None:
    run = Run(3)
    for rank in range(3):
        run[rank].steps(1, [int(rank == 1)])
    run.each(all_reduce(4))
    run[0, 2].calls(all_reduce(4), waits=True)
    run[1].calls(all_reduce(8), waits=True)
    first = run.errors()[0]
    assert (first.kind, first.culprits) == ("divergence", (1,))

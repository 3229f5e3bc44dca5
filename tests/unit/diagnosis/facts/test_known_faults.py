"""Known faults of backends are cited where they may be why a number is wrong, and nowhere else."""

from __future__ import annotations

import pytest

from ..builder import Run, all_reduce, broadcast, reduce_to


def failed(rank: int, kind: str = "AssertionError", root: int = 0) -> tuple[str, ...]:
    """What is told of a rank that fails after a reduce."""
    run = Run(3)
    run.each(all_reduce(8))
    run.each(reduce_to(8, root=root), line=17)
    run[rank].raises(kind, type=kind)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (rank,))
    return tuple(found.details)


def test_partial_sums_of_gloo() -> None:
    (line,) = failed(1)
    assert line.startswith("known fault (torch 2.13 and 2.15): gloo leaves partial sums")
    assert line.endswith("rank 1 called reduce(dst=0, sum, float32[8]) at train.py:17 in step")


@pytest.mark.parametrize(("rank", "kind"), [(0, "AssertionError"), (1, "KeyError")])
def test_not_of_the_root_nor_of_other_errors(rank: int, kind: str) -> None:
    assert failed(rank, kind) == ()


def gradient(members: tuple[int, ...], forward: bool = True) -> tuple[str, ...]:
    """What is told where the root of a broadcast finds its gradient wrong: rank 1."""
    run = Run(3)
    run.new_group("1", members)
    if forward:
        run[1, 2].calls(broadcast(8, root=1), group="1", line=20)
    run[1, 2].calls(reduce_to(8, root=1), group="1", line=21)
    run[1].raises("AssertionError", type="AssertionError")
    (found,) = run.errors()
    return tuple(found.details)


def test_the_gradient_of_a_broadcast_in_a_group() -> None:
    """Rank 1 is number 0 of its group."""
    (line,) = gradient((1, 2))
    assert line.startswith(
        "known fault (torch 2.13, not 2.15): the gradient of torch.distributed.nn"
    )
    assert line.endswith("rank 1 called reduce(dst=1, sum, float32[8]) at train.py:21 in step")


@pytest.mark.parametrize(("members", "forward"), [((0, 1, 2), True), ((1, 2), False)])
def test_a_reduce_that_is_no_such_gradient(members: tuple[int, ...], forward: bool) -> None:
    assert gradient(members, forward) == ()

"""Known faults of backends are cited where they may be why a number is wrong, and nowhere else."""

from __future__ import annotations

import pytest

from ..builder import Run, all_reduce, reduce_to


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

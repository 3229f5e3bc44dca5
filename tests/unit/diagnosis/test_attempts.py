"""Which attempt of a job a finding is of, where its launcher restarts what fails."""

from __future__ import annotations

import pytest

from .builder import Run, all_reduce


@pytest.mark.parametrize(
    ("restarts", "said"),
    [
        ((0, 0), "rank 1 raised"),
        ((0, 1), "attempt 0 (before any restart): rank 1 raised"),
        ((1, 1), "attempt 1 (after restart 1 of 1): rank 1 raised"),
        ((2, 0), "attempt 2 (after restart 2): rank 1 raised"),
    ],
)
def test_the_attempt_is_named(restarts: tuple[int, int], said: str) -> None:
    run = Run(2)
    run.each(all_reduce(8))
    for rank in run.ranks.values():
        rank.restarts = restarts
    run[1].raises("OSError: disk is full")
    (found,) = run.errors()
    assert found.message.startswith(said)

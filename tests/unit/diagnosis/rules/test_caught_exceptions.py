"""What a test runner caught is what its rank ended of, if it ended with another status than 0."""

from __future__ import annotations

from ..builder import Run, all_reduce

MESSAGE = "ValueError: rank one is broken"


def caught(status: int) -> Run:
    run = Run(2)
    run.each(all_reduce(4))
    run[1].notes_down("caught_exception", MESSAGE, line=8, type="ValueError")
    run[1].notes_down("caught_exception", "KeyError: later", line=9, type="KeyError")
    run[0].calls(all_reduce(4), waits=True)
    run[1].exits(status)
    run.passes(1)
    return run


def test_a_test_that_failed() -> None:
    (found,) = caught(1).errors()
    assert (found.kind, found.culprits, found.victims) == ("rank_exception", (1,), (0,))
    assert MESSAGE in found.message
    location = found.ranks[1].location
    assert location is not None
    assert location.line == 8


def test_a_test_that_was_expected_to_fail() -> None:
    (found,) = caught(0).errors()
    assert (found.kind, found.culprits) == ("early_exit", (1,))
    assert MESSAGE not in found.message

"""What a test runner caught is what its rank ended of, if it ended with another status than 0."""

from __future__ import annotations

import signal

from ..builder import Run, all_reduce

MESSAGE = "ValueError: rank one is broken"


def failing() -> Run:
    """Rank 1's test has failed, and rank 0 waits for it."""
    run = Run(2)
    run.each(all_reduce(4))
    run[1].notes_down("caught_exception", MESSAGE, line=8, type="ValueError")
    run[1].notes_down("caught_exception", "KeyError: later", line=9, type="KeyError")
    run[0].calls(all_reduce(4), waits=True)
    return run


def caught(status: int) -> Run:
    run = failing()
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


def test_a_test_has_failed_and_its_rank_has_not_ended_yet() -> None:
    """What the tests shared is taken down: that the group is destroyed is no early exit yet."""
    run = failing()
    run[1].destroys()
    run.passes(1)
    assert run.errors() == []
    run.passes(10)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("early_exit", (1,))


def test_others_end_a_rank_whose_test_has_failed() -> None:
    """Rank 0 lost its connection and was faster to end than rank 1, so the launcher ended that."""
    run = failing()
    run[1].destroys()
    run[0].raises("RuntimeError: Connection closed by peer", type="RuntimeError")
    run[1].exits(signal=signal.SIGTERM)
    run.passes(1)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (1,))
    assert MESSAGE in found.message


def test_a_rank_that_went_on_to_other_tests_is_ended() -> None:
    run = failing()
    run[1].calls(all_reduce(4))
    run.each(all_reduce(4))
    run[0].exits(signal=signal.SIGKILL)
    run[1].exits(signal=signal.SIGTERM)
    run.passes(1)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (0,))

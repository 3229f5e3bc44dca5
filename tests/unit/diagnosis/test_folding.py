"""Which of two faults on different hosts came first, by clocks that cannot tell, and that can."""

from __future__ import annotations

import pytest

from distdebug.diagnosis.rules.straggler import stragglers

from .builder import Run, all_reduce

LATER_S = 0.004


def two_faults(error_ms: float, node: int = 1) -> Run:
    """Rank 0 raises, and 4 ms later rank 1, which is on that node."""
    run = Run(3)
    run.each(all_reduce(8))
    run[1].node = node
    run.clock_errors_ns = {1: int(error_ms * 1e6)}
    run[0].raises("ValueError: first", exits=False)
    run.passes(LATER_S)
    run[1].raises("KeyError: second", exits=False)
    return run


def test_the_clocks_cannot_tell() -> None:
    (found,) = two_faults(error_ms=9).errors()
    assert (found.kind, found.culprits) == ("rank_exception", (0,))
    assert found.details[-1].startswith("this may have come first: rank 1 raised KeyError: second ")
    assert found.details[-1].endswith("hosts that are known to within 9.0 ms)")


@pytest.mark.parametrize(("error_ms", "node"), [(2, 1), (9, 0)], ids=["known well", "one host"])
def test_the_clocks_can_tell(error_ms: float, node: int) -> None:
    (found,) = two_faults(error_ms, node).errors()
    assert found.culprits == (0,)
    assert not any("may have come first" in one for one in found.details)


def test_what_is_a_consequence_by_its_kind_has_no_doubtful_order() -> None:
    """A lost connection never explains an exception of the user's, whenever it is seen."""
    run = Run(2)
    run.each(all_reduce(8))
    run[1].node = 1
    run.clock_errors_ns = {1: int(1e9)}
    run[0].raises("ValueError: first", exits=False)
    run[1].raises("Connection closed by peer", exits=False, communication=True)
    (found,) = run.errors()
    assert found.culprits == (0,)
    assert not any("may have come first" in one for one in found.details)


@pytest.mark.parametrize("error_ms", [2, 80])
def test_how_late_a_straggler_came(error_ms: float) -> None:
    run = Run(2)
    run[1].node = 1
    run.clock_errors_ns = {1: int(error_ms * 1e6)}
    for _ in range(40):
        run[0].calls(all_reduce(8), waits=True)
        run.passes(0.03)
        run[1].calls(all_reduce(8), waits=True)
        for rank in range(2):
            run[rank].goes_on()
        run.passes(0.02)
    (found,) = stragglers(run.snapshot())
    doubted = any("the clocks of the hosts" in one for one in found.details)
    assert doubted == (error_ms > 30)

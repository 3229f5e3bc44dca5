"""A launcher ends ranks that have not failed, for a world of another size: nobody is to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.diagnosis.builder import Run, all_reduce

SIGTERM = 15


def ended(replaced: bool, peers_ends: bool) -> Run:
    """Two ranks in a call; the first is sent SIGTERM, and the other loses its connection by it, or
    is sent that, too."""
    run = Run(2)
    for rank in (0, 1):
        run[rank].calls(all_reduce(8), waits=True)
    for rank in (0, 1) if peers_ends else (0,):
        run[rank].exits(None, signal=SIGTERM)
        run[rank].process = replace(run[rank].process, asked=replaced, replaced=replaced)
    if not peers_ends:
        run[1].raises("RuntimeError: Connection closed by peer [10.0.0.1]:1234")
    return run


@pytest.mark.parametrize("peers_ends", [True, False])
def test_ranks_that_are_replaced(peers_ends: bool) -> None:
    assert ended(replaced=True, peers_ends=peers_ends).errors() == []


@pytest.mark.parametrize("peers_ends", [True, False])
def test_ranks_that_somebody_else_has_ended(peers_ends: bool) -> None:
    """The twin."""
    found = ended(replaced=False, peers_ends=peers_ends).errors()
    assert [one.kind for one in found] == ["rank_died"]


def test_a_failure_from_before_is_the_cause() -> None:
    """On another node a rank has failed, and that is why this launcher begins anew."""
    run = Run(2)
    for rank in (0, 1):
        run[rank].calls(all_reduce(8), waits=True)
    run[1].raises("ValueError: a bad sample")
    run[0].exits(None, signal=SIGTERM)
    run[0].process = replace(run[0].process, asked=True, replaced=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (1,))

"""MPI ends a rank that has lost its peer in the middle of a call, with a status of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.diagnosis.builder import Run, all_reduce

OF_OPEN_MPI = 14


def calling(backend: str) -> Run:
    """Two ranks in a call of that backend."""
    run = Run(2)
    for rank in (0, 1):
        builder = run[rank]
        builder.groups = {
            key: replace(group, backend=backend) for key, group in builder.groups.items()
        }
        builder.calls(all_reduce(8), waits=True)
    return run


@pytest.mark.parametrize("first", [0, 1])
def test_an_abort_is_the_cause_and_what_mpi_does_then_is_not(first: int) -> None:
    """Whichever was seen to end first: sockets close before an aborted process is reaped."""
    run = calling("mpi")
    for rank in (first, 1 - first):
        if rank == 1:
            run[1].exits(None, signal=6)
        else:
            run[0].exits(OF_OPEN_MPI)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (1,))


def test_a_rank_that_mpi_ends_alone_is_the_cause() -> None:
    run = calling("mpi")
    run[0].exits(OF_OPEN_MPI)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (0,))


def test_a_status_without_mpi_is_nobodys_consequence() -> None:
    """The twin: gloo ends no process, so who ended by itself comes before who aborted."""
    run = calling("gloo")
    run[0].exits(OF_OPEN_MPI)
    run[1].exits(None, signal=6)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (0,))

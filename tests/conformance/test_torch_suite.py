"""torch's own tests pass on distcore's tcp, and with the layer around gloo."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support import mpi

from .outcomes import DETAIL, FAILED, INFO, MPI, PASSED, TCP
from .wheel import ENVIRONMENTS, LIST_OF_MPI, NAMES_THE_BACKEND, run

CALLS = ("all_gather", "all_reduce", "barrier", "test_broadcast", "test_gather", "test_reduce",
         "test_scatter", "send_recv", "irecv", "object", "coalesced", "subgroup")  # fmt: skip

LIMIT_S = 1700.0
"""Less than the tests' own, so that one that is cut says what came of what had ended."""


def failures(
    environment: Mapping[str, str], world: int, passes: int, only: tuple[str, ...] = ()
) -> set[str]:
    """The names of the tests that do not pass; at least `passes` must, and all must have ended."""
    outcome = run(environment, world, only, limit_s=LIMIT_S)
    assert not outcome.why, f"{outcome}, {outcome.those(FAILED)}, {outcome.output[-5000:]}"
    assert len(outcome.those(PASSED)) >= passes, f"{outcome}, {outcome.output[-5000:]}"
    return outcome.those(FAILED)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_calls_on_tcp() -> None:
    assert failures(ENVIRONMENTS[TCP], 2, 45, CALLS) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_calls_with_the_layer_around_gloo() -> None:
    assert failures(ENVIRONMENTS[INFO], 2, 45, CALLS) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "passes"), [(2, 89), (3, 89), (4, 92), (8, 110)])
def test_everything_on_tcp(world: int, passes: int) -> None:
    """As many as stock gloo passes, but one."""
    assert failures(ENVIRONMENTS[TCP], world, passes) == {NAMES_THE_BACKEND}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_list_of_mpi_on_tcp() -> None:
    assert failures(LIST_OF_MPI[TCP], 4, 90) <= {NAMES_THE_BACKEND}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_list_of_mpi_on_mpi() -> None:
    """Under mpiexec."""
    mpi.python("openmpi")
    assert failures(LIST_OF_MPI[MPI], 4, 90) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "passes"), [(2, 90), (4, 93)])
def test_everything_with_the_layer_around_gloo(world: int, passes: int) -> None:
    assert failures(ENVIRONMENTS[INFO], world, passes) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "passes"), [(2, 90), (4, 93)])
def test_everything_at_detail_around_gloo(world: int, passes: int) -> None:
    """torch's own DETAIL fails ten of them."""
    assert failures(ENVIRONMENTS[DETAIL], world, passes) == set()

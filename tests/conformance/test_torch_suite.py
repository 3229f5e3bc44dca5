"""torch's own tests pass on distcore's tcp, and with the layer around gloo."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conformance import outcomes
from tests.support import mpi, runs

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).with_name("torch_suite.py")
CALLS = ("all_gather", "all_reduce", "barrier", "test_broadcast", "test_gather", "test_reduce",
         "test_scatter", "send_recv", "irecv", "object", "coalesced", "subgroup")  # fmt: skip
TCP = {"BACKEND": "gloo", "RUN_BACKEND": "tcp", "DIST_PLUGIN": "distcore"}
LAYER = {"BACKEND": "gloo", "DIST_PLUGIN": "tests.conformance.distdebug_layer"}
OF_MPI = {"BACKEND": "mpi", "RUN_BACKEND": "tcp", "DIST_PLUGIN": "distcore"}
MPI = {"BACKEND": "mpi", "RUN_BACKEND": "mpi", "DIST_PLUGIN": "distcore"}
AT_DETAIL = {**LAYER, "DISTDEBUG_LEVEL": "DETAIL"}
NAMES_THE_BACKEND = {"test_get_backend"}
"""It compares the backend's name with that of the list."""


def failures(
    environment: dict[str, str], world: int, passes: int, only: tuple[str, ...] = ()
) -> set[str]:
    """The names of the tests that do not pass; at least `passes` must."""
    chosen = [word for pattern in only for word in ("-k", pattern)]
    names = runs.environment({**environment, "WORLD_SIZE": str(world), "PYTHONPATH": str(ROOT)})
    names.pop("CI", None)  # there torch's runner writes XML, with a package that we do not need
    with tempfile.TemporaryDirectory(prefix="distdebug-torch-suite-") as place:
        file = Path(place, "outcomes")
        done = subprocess.run(
            [sys.executable, str(SUITE), *chosen],
            env={**names, outcomes.FILE: str(file)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert re.search(r"^Ran \d+ tests? in ", done.stdout, re.MULTILINE), done.stdout[-5000:]
        found = outcomes.read(file)
    passed = [name for name, outcome in found.items() if outcome == outcomes.PASSED]
    assert len(passed) >= passes, done.stdout[-5000:]
    return {name for name, outcome in found.items() if outcome == outcomes.FAILED}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_calls_on_tcp() -> None:
    assert failures(TCP, 2, 45, CALLS) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_calls_with_the_layer_around_gloo() -> None:
    assert failures(LAYER, 2, 45, CALLS) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "passes"), [(2, 89), (3, 89), (4, 92), (8, 110)])
def test_everything_on_tcp(world: int, passes: int) -> None:
    """As many as stock gloo passes, but one."""
    assert failures(TCP, world, passes) == NAMES_THE_BACKEND


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_list_of_mpi_on_tcp() -> None:
    assert failures(OF_MPI, 4, 90) <= NAMES_THE_BACKEND


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_list_of_mpi_on_mpi() -> None:
    """Under mpiexec."""
    mpi.python("openmpi")
    assert failures(MPI, 4, 90) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "passes"), [(2, 90), (4, 93)])
def test_everything_with_the_layer_around_gloo(world: int, passes: int) -> None:
    assert failures(LAYER, world, passes) == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "passes"), [(2, 90), (4, 93)])
def test_everything_at_detail_around_gloo(world: int, passes: int) -> None:
    """torch's own DETAIL fails ten of them."""
    assert failures(AT_DETAIL, world, passes) == set()

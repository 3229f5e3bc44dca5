"""The faults of the matrix on our backend mpi, whose ranks mpiexec starts: found for what they
are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import mpi, runs

from .cases import BOTH, CASES, Case
from .running import LIMIT_S, PROGRAMS, complaints

NOT_RUN = {
    "store lost in the middle": "the ranks' store has a port of its own, which the fault says that "
    "it does not find; and without it nobody on mpi learns that others have left",
}
SHORT = {"killed"}


def rows() -> list[Any]:
    """Each case that is of no backend, with its smallest world."""
    found = []
    for case in CASES:
        if case.backends == BOTH and not case.own_network and case.name not in NOT_RUN:
            marks = () if case.name in SHORT else (pytest.mark.long,)
            found.append(pytest.param(case, id=case.name.replace(" ", "_"), marks=marks))
    return found


def run(case: Case, size: int, directory: Path) -> runs.Run:
    mpi.python("openmpi")
    words = [word for spec in case.specs for word in ("--inject", spec)]
    words += [*case.flags, "--launcher", "mpi", "-n", str(size)]
    words += [str(PROGRAMS / f"{case.program}.py"), "mpi", *case.arguments, *case.does]
    extra = {"PYTHONPATH": str(mpi.ROOT)}
    return runs.run("run", words, directory, extra, limit_s=2 * LIMIT_S)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", rows())
def test_found(case: Case, tmp_path: Path) -> None:
    size = case.sizes[0]
    done = run(case, size, tmp_path)
    assert not complaints(case, size, done), done.explain()


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("program", ["loop", "replicas"])
def test_silent(program: str, tmp_path: Path) -> None:
    flags = ("--check", "all", "--hang-timeout", "5")
    case = Case("clean", (), "ok", flags=flags, program=program)
    done = run(case, 2, tmp_path)
    assert not complaints(case, 2, done), done.explain()


def test_the_named_cases_exist() -> None:
    assert {case.name for case in CASES} >= SHORT | NOT_RUN.keys()

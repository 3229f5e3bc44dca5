"""Every fault of the matrix is found for what it is; without it, the same program is clean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from distdebug.faults.actions import ACTIONS
from distdebug.faults.spec import parse
from tests.support.zygote import Zygote

from .cases import CASES, Case
from .running import complaints, matrix, run, twins


def _rows(rows: Iterable[tuple[Case, str, int]]) -> list[Any]:
    """One row of each case; the others are long. `make fault-matrix` has all."""
    places: dict[Case, int] = {}
    found = []
    for case, backend, size in rows:
        place = places[case] = places.get(case, -1) + 1
        # In turn the first and the last, which is the other backend with more ranks.
        wanted = (len(places) % 2) * (len(case.backends) * len(case.sizes) - 1)
        marks = [] if place == wanted and case.quick else [pytest.mark.long]
        if case.own_network:
            marks.append(pytest.mark.root)
        found.append(
            pytest.param(
                *(case, backend, size),
                id="-".join((case.name.replace(" ", "_"), backend, str(size))),
                marks=marks,
            )
        )
    return found


@pytest.mark.parametrize(("case", "backend", "size"), _rows(matrix()))
def test_found(case: Case, backend: str, size: int, tmp_path: Path, zygote: Zygote) -> None:
    done = run(zygote, case, backend, size, tmp_path)
    assert not complaints(case, size, done), done.explain()


@pytest.mark.parametrize(("case", "backend", "size"), _rows(twins()))
def test_silent(case: Case, backend: str, size: int, tmp_path: Path, zygote: Zygote) -> None:
    done = run(zygote, case, backend, size, tmp_path)
    assert not complaints(case, size, done), done.explain()


def test_every_action_is_in_the_matrix() -> None:
    parsed = [parse(spec) for case in CASES for spec in case.specs]
    assert {fault.action for fault in parsed} == set(ACTIONS)

"""A few random faults in random programs, always the same; `make chaos` makes others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

from .chaos import complaints, drawn, make

SEED = 20261122
RUNS = 20


@pytest.mark.parametrize("number", range(RUNS))
def test_nobody_else_is_blamed(number: int, tmp_path: Path, zygote: Zygote) -> None:
    run = drawn(SEED, number)
    done = make(zygote, run, tmp_path)
    found = list(complaints(run, done))
    assert not found, f"{run.fault.text}: {found}\n{run.again}\n{done.explain()}"


def test_the_same_seed_is_the_same_run() -> None:
    assert drawn(7, 3) == drawn(7, 3)
    assert len({drawn(7, number).fault.text for number in range(20)}) > 10

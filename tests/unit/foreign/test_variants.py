"""The two recorded jobs, and variants of them: 400 stories whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.foreign import dump_files, judging
from distdebug.foreign.trace import traced
from tests.unit.foreign import variants

CASES = variants.originals()
FEW, ALL = 15, 200
LONG = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.parametrize("name", CASES)
def test_the_recorded_case(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.write(tmp_path)
    found = judged(tmp_path)
    assert len(found) == 1
    assert set(found[0].culprits) == case.culprits
    assert found[0].side == case.side
    assert not found[0].proven
    assert "reduce_op" in found[0].not_in_record


@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, ALL), marks=LONG)])
@pytest.mark.parametrize("name", CASES)
def test_what_must_not_change_the_verdict_does_not(name: str, seeds: range, tmp_path: Path) -> None:
    wrong = []
    for seed in seeds:
        case = variants.variant(CASES[name], seed)
        folder = tmp_path / str(seed)
        case.write(folder)
        found = judged(folder)
        accused = {rank for one in found for rank in one.culprits}
        unseen = {rank for one in found for rank in one.missing}
        # A culprit without a dump cannot be told from a victim without one, where both are waited
        # for in the same call: beside one that has a dump either is missing, and not accused.
        if not (
            case.culprits - case.lost == accused - unseen
            and case.culprits <= accused | unseen
            and unseen <= case.lost
            and accused & unseen <= case.culprits
            and {one.side for one in found} == {case.side}
        ):
            wrong.append((seed, case.story, sorted(case.culprits), found))
    assert not wrong, f"{len(wrong)} of {len(seeds)}: {wrong[:3]}"


def judged(folder: Path) -> list[judging.Finding]:
    jobs = dump_files.load(folder).jobs
    assert len(jobs) == 1
    return judging.judge(traced(jobs[0].dumps), jobs[0].age_s)

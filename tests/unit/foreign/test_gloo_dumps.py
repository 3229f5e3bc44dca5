"""What torch's recorder held when programs on stock gloo stood still: what it proves is named, and
correct programs are accused of nothing. `fixtures/record_dumps.py` has recorded them."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from debugger.foreign import dump_files, judging
from debugger.foreign.trace import traced

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
PACKED = FIXTURES / "recorded" / "gloo_dumps.tar.xz"
FROM_ELSEWHERE = {"early_exit": "missing_rank"}
"""That the rank has left is not in its dump: only that it never came."""
MISMATCHES = ("op_mismatch", "dtype_mismatch", "shape_mismatch")


def _cases() -> Sequence[str]:
    with tarfile.open(PACKED) as packed:
        return sorted({name.rpartition("/")[0] for name in packed.getnames()})


@pytest.mark.parametrize("case", _cases())
def test_what_the_fields_prove_is_named(case: str, tmp_path: Path) -> None:
    expected = json.loads((FIXTURES / "expected" / f"{case.rpartition('/')[2]}.json").read_text())
    found = judged(case, tmp_path)
    if expected["outcome"] == "ok":
        assert found == []
        return
    assert len(found) == 1
    assert set(found[0].culprits) == set(expected["culprits"])
    assert found[0].kind == FROM_ELSEWHERE.get(expected["outcome"], expected["outcome"])
    if found[0].kind in MISMATCHES:
        assert found[0].proven
        assert expected["line"] in lines(found[0], found[0].culprits)
    else:
        assert found[0].side == "host"
        assert not found[0].proven
        waiting = lines(found[0], found[0].victims)
        assert waiting  # where the culprit stands is not on record; where it is waited for is
        if expected["line_of"] == "victim":
            assert expected["line"] in waiting


def judged(case: str, folder: Path) -> list[judging.Finding]:
    with tarfile.open(PACKED) as packed:
        for member in packed:
            if member.name.rpartition("/")[0] == case:
                packed.extract(member, folder, filter="data")
    for file in folder.rglob("rank_*"):
        assert os.path.getmtime(file) > 1e9  # kept: it tells how old the newest call is
    (job,) = dump_files.load(folder).jobs
    return judging.judge(traced(job.dumps), job.age_s)


def lines(finding: Any, ranks: Any) -> set[int]:
    return {finding.ranks[rank].location.line for rank in ranks if finding.ranks[rank].location}

"""Runs of `fixtures/values` are made, recorded and compared: those that differ by rounding alone
are equal, and the others part where `expected.json` says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from tests.support.values_runs import VALUES

EXPECTED = json.loads((VALUES / "expected.json").read_text())
FEW = {"dp1", "dp2", "late_scale"}


def _made(folder: Path, names: Sequence[str]) -> Path:
    words = [sys.executable, "-m", "tests.support.values_runs", str(folder), *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def _check(
    folder: Path, pair: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> Mapping[str, Any]:
    code = main(["compare", "--values", *(str(folder / pair[one]) for one in "ab"), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["outcome"] == pair["outcome"], (pair, found["first"])
    assert code == (found["outcome"] == "different")
    for key in ("step", "quantity"):
        assert found["first"] is None or found["first"][key] == pair[key], (pair, found["first"])
    if pair.get("names"):
        assert found["first"]["name"] in pair["names"]
    return found


def test_two_sizes_and_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Starts 4 ranks, of one import of torch."""
    _made(tmp_path, sorted(FEW))
    pairs = [one for one in EXPECTED["pairs"] if {one["a"], one["b"]} <= FEW]
    found = [_check(tmp_path, pair, capsys) for pair in pairs]
    assert {one["outcome"] for one in found} == {"equal", "rounding", "different"}
    [different] = [one["first"] for one in found if one["first"]]
    assert different["a"]["location"]["function"] == "main"
    assert different["ranks"] == [0]
    assert found[0]["without_effect"] == []  # of other numbers of ranks, they are not compared
    plot = tmp_path / "plot.svg"
    runs = [str(tmp_path / "dp1"), str(tmp_path / "late_scale")]
    assert main(["compare", "--values", *runs, "-o", str(plot)]) == 1
    assert "part at step 4" in plot.read_text()
    assert "DIFFERENT  the runs part at step 4: gradient" in capsys.readouterr().out


@pytest.mark.long
def test_all_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """44 runs, of up to 30 steps."""
    _made(tmp_path, [])
    for pair in EXPECTED["pairs"]:
        _check(tmp_path, pair, capsys)

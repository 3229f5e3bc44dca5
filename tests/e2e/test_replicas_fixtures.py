"""Silent divergence: what `--check replicas` says of the programs in fixtures/replicas.

The lines come from marks in the programs, all else from `expected.json`; with TWIN in the
environment a buggy program is its own correct twin.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

from .test_fixtures import FIXTURES
from .test_slips import silent, some

REPLICAS = FIXTURES / "replicas"
TABLE: dict[str, dict[str, Any]] = json.loads((REPLICAS / "expected.json").read_text())
BUGGY, CORRECT = TABLE["buggy"], TABLE["correct"]
FOUND = {name: row for name, row in BUGGY.items() if row["found"]}
SHORT = {
    *("sequence_norms_not_reduced", "root_left_out_of_fsdp", "stepped_below_no_sync"),
    *("megatron_sequence_parallel", "local_sgd_below_no_sync", "ensemble"),
}
CODES = {"error": ("divergence", 95), "warning": ("ok", 0)}


def started(
    zygote: Zygote, place: Path, script: str, size: int, extra: dict[str, str] | None = None
) -> runs.Run:
    every = str(BUGGY.get(Path(script).stem, {}).get("every", 1))
    flags = ["--check", "replicas", "--check-every", every]
    return zygote.run(size, [str(REPLICAS / script)], place, flags, extra)


def check(name: str, done: runs.Run) -> None:
    """The first finding has what its row has: one of several values where it is a list, and for the
    step a first and a last one; none is compared where the row has null."""
    row, found = BUGGY[name], done.report["findings"][0]
    assert (done.report["outcome"], done.exit_code) == CODES[found["severity"]], done.explain()
    assert found["kind"] == "divergence", done.explain()
    for field in ("severity", "quantity", "name", "axis"):
        expected = row[field] if isinstance(row[field], list) else [row[field]]
        assert found[field] in expected or None in expected, (field, done.explain())
    ranks = sorted(found["culprits"])
    assert ranks == row["ranks"] or ranks in row["ranks"], done.explain()
    first, last = row["step"] if isinstance(row["step"], list) else (row["step"], row["step"])
    assert first <= found["step"] <= last, done.explain()
    script = REPLICAS / "buggy" / f"{name}.py"
    lines = script.read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("# <- look here")]
    locations = [found["ranks"][str(rank)]["location"] for rank in ranks]
    for one in locations if marked else ():
        assert (one["file"], one["line"]) == (str(script), marked[0]), done.explain()


@pytest.mark.parametrize("name", some(FOUND, SHORT))
def test_divergence(name: str, tmp_path: Path, zygote: Zygote) -> None:
    check(name, started(zygote, tmp_path, f"buggy/{name}.py", FOUND[name]["nproc"]))


@pytest.mark.long
@pytest.mark.parametrize("name", BUGGY)
def test_twin_is_silent(name: str, tmp_path: Path, zygote: Zygote) -> None:
    silent(started(zygote, tmp_path, f"buggy/{name}.py", BUGGY[name]["nproc"], {"TWIN": "1"}))


@pytest.mark.parametrize("name", some(CORRECT, SHORT))
def test_correct_is_silent(name: str, tmp_path: Path, zygote: Zygote) -> None:
    silent(started(zygote, tmp_path, f"correct/{name}.py", CORRECT[name]["nproc"]))


def test_every_program_is_expected() -> None:
    for folder, rows in TABLE.items():
        assert {path.stem for path in (REPLICAS / folder).glob("*.py")} == set(rows)
    assert {*FOUND, *CORRECT} >= SHORT

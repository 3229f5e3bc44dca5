"""Slips: what fixtures/slips says of a rank whose calls part from the others', and of its twin.

The lines come from marks in the programs, all else from `expected.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote

from .test_fixtures import FIXTURES, starved

SLIPS = FIXTURES / "slips"
TABLE: dict[str, dict[str, Any]] = json.loads((SLIPS / "expected.json").read_text())
BUGGY, CORRECT = TABLE["buggy"], TABLE["correct"]
SHORT = {
    *("two_sums_swapped", "skipped_then_end", "swapped_in_sub_group"),
    *("repeated_behind_two_layers", "swapped_between_pairs"),
    *("work_stealing", "request_server", "join_of_torch"),
}
LEVELS = ("INFO", "DETAIL")


def some(names: dict[str, Any], short: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.long]) for name in names]


def started(
    zygote: Zygote, place: Path, script: str, size: int, level: str, wrong: int = -1, *flags: str
) -> runs.Run:
    words = ["--debug-level", level, *flags]
    return zygote.run(size, [str(SLIPS / script)], place, words, {"WRONG_RANK": str(wrong)})


def silent(done: runs.Run) -> None:
    """Nothing is found at the end, and nothing was meanwhile; but for a rank that did come last,
    for want of a core."""
    late = {"straggler"} if starved() else set()
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert {one["kind"] for one in done.report["findings"]} <= late, done.explain()
    meanwhile = [one for one in found_meanwhile(done) if one["finding"] not in late]
    assert meanwhile == [], done.explain()


def found_meanwhile(done: runs.Run) -> list[dict[str, Any]]:
    path = done.directory / "events.jsonl"
    events = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    return [one for one in events if one["kind"] == "finding"]


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", BUGGY)
def test_twin_is_silent(name: str, level: str, tmp_path: Path, zygote: Zygote) -> None:
    silent(started(zygote, tmp_path, f"buggy/{name}.py", BUGGY[name]["nproc"], level))


@pytest.mark.parametrize("name", some(CORRECT, SHORT))
def test_correct_is_silent(name: str, tmp_path: Path, zygote: Zygote) -> None:
    silent(started(zygote, tmp_path, f"correct/{name}.py", CORRECT[name]["nproc"], "INFO"))


@pytest.mark.long
@pytest.mark.parametrize("name", CORRECT)
def test_correct_is_silent_at_detail(name: str, tmp_path: Path, zygote: Zygote) -> None:
    silent(started(zygote, tmp_path, f"correct/{name}.py", CORRECT[name]["nproc"], "DETAIL"))


def planned(
    loaded: TorchLoaded, place: Path, script: str, row: dict[str, Any], patch: pytest.MonkeyPatch
) -> runs.Run:
    patch.setenv("WRONG_RANK", str(row.get("wrong", -1)))
    return plan(loaded, ["-n", str(row["nproc"]), str(SLIPS / script)], place)


@pytest.mark.long
@pytest.mark.parametrize("name", CORRECT)
def test_plan_of_a_correct_program(
    name: str, tmp_path: Path, torch_loaded: TorchLoaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(planned(torch_loaded, tmp_path, f"correct/{name}.py", CORRECT[name], monkeypatch))


def test_every_program_is_expected() -> None:
    for folder, rows in TABLE.items():
        scripts = {path.stem for path in (SLIPS / folder).glob("[!_]*.py")}
        assert scripts == set(rows)
    assert {*BUGGY, *CORRECT} >= SHORT

"""A run with faults, from the flag to the exit code; and its twins, which stay silent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(8):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def inject(tmp_path: Path, zygote: Zygote, *specs: str) -> runs.Run:
    (tmp_path / "train.py").write_text(PROGRAM)
    return zygote.run(2, ["train.py"], tmp_path, flags_of(specs))


def flags_of(specs: Sequence[str]) -> list[str]:
    return [word for spec in specs for word in ("--inject", spec)]


def events(run: runs.Run, kind: str) -> list[dict[str, Any]]:
    path = run.directory / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["kind"] == kind]


def test_a_fault_explains_the_verdict(tmp_path: Path, zygote: Zygote) -> None:
    spec = "kill(rank=1) @ all_reduce#5"
    run = inject(tmp_path, zygote, spec, "kill(rank=0) @ all_reduce#50")
    assert run.exit_code == 94, run.explain()
    (error,) = run.errors
    assert (error["kind"], error["culprits"], error["injected"]) == ("rank_died", [1], spec)
    first, second = run.report["injected"]
    assert (first["fault"], first["number"], first["rank"]) == (spec, 0, 1)
    assert (first["fired"], first["times"], first["not_in"]) == (True, 1, [])
    assert first["where"].startswith("all_reduce(sum, float32[4]) #5")
    assert (second["fired"], second["not_in"]) == (False, [0])
    assert second["why"] in ("rank 0 made 6 all_reduce calls", "rank 0 made 5 all_reduce calls")
    told = run.stderr.splitlines()
    assert told.count(f"distdebug: injected {spec} in rank 1") == 1
    assert f"  injected: {spec}" in told
    assert "not injected: kill(rank=0) @ all_reduce#50 never happened: " in run.stderr
    (event,) = events(run, "injected")
    assert (event["fault"], event["rank"]) == (spec, 1)
    assert event["happened_ns"] == first["time_ns"]
    assert f"injected: {spec}" in (run.directory / "junit.xml").read_text()
    _a_report_on_the_spot_says_the_same(run)


def _a_report_on_the_spot_says_the_same(run: runs.Run) -> None:
    report = run.report
    (run.directory / "report.json").unlink()
    shown = subprocess.run(
        [str(runs.DISTDEBUG), "report", "--json", str(run.directory)],
        capture_output=True,
        text=True,
        check=False,
        env=runs.environment(),
    )
    assert json.loads(shown.stdout)["injected"] == report["injected"]


@pytest.mark.long
def test_a_run_with_a_fault_that_harms_nobody_is_a_success(tmp_path: Path, zygote: Zygote) -> None:
    run = inject(tmp_path, zygote, "delay(rank=1, 1ms) @ all_reduce")
    assert run.exit_code == 0, run.explain()
    assert run.report["outcome"] == "ok"
    (one,) = run.report["injected"]
    assert (one["fired"], one["times"]) == (True, 8)
    assert len(events(run, "injected")) == 1
    assert run.report["findings"] == [], run.explain()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "kill(rank=1) @ all_reduce#8",
            "kill(rank=1) @ all_reduce#8 never happened: rank 1 made 8 all_reduce calls",
        ),
        (
            "change(rank=1, root) @ call 3",
            "change(rank=1, root) @ call 3: all_reduce has no root",
        ),
    ],
)
def test_a_run_without_its_fault_is_no_success(
    spec: str, sentence: str, tmp_path: Path, zygote: Zygote
) -> None:
    run = inject(tmp_path, zygote, spec)
    assert run.exit_code == 2, run.explain()
    assert (run.report["outcome"], run.report["exit_code"]) == ("failed", 2)
    assert f"NOT INJECTED  {sentence}" in run.stderr.splitlines()
    assert f'message="{sentence}"' in (run.directory / "junit.xml").read_text()
    assert run.errors == []
    assert not events(run, "injected")


@pytest.mark.long
def test_without_a_plan_nothing_is_said_of_faults(tmp_path: Path, zygote: Zygote) -> None:
    run = inject(tmp_path, zygote)
    assert run.exit_code == 0, run.explain()
    assert run.report["injected"] == []
    assert "inject" not in run.stderr
    assert not list(run.directory.glob("faults.json")) + list(run.directory.glob("injected*"))

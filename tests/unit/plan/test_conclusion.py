"""What a plan leaves in its run directory: the report in all its forms, told by class of ranks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.diagnosis.facts.blocking import Model
from distdebug.plan.conclusion import PlanFacts, conclude
from distdebug.plan.program import CutOff, Undecided
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import CallSite
from distdebug.reports import github
from tests.support.programs import FILE, Programs
from tests.unit.diagnosis.builder import all_reduce, broadcast, recv, send

FACTS = PlanFacts(["distdebug", "plan", "-n", "6", "train.py"], of=6, cores=2, seconds=220.4)


def concluded(tmp_path: Path, made: Programs, **facts: Any) -> tuple[RunDirectory, dict[str, Any]]:
    directory = RunDirectory.create(tmp_path / "base", tmp_path / "run")
    report = conclude(directory, made.programs(), Model(), replace(FACTS, **facts))
    directory.close()
    assert json.loads(directory.report_json.read_text()) == json.loads(json.dumps(report))
    return directory, report


def pipeline() -> Programs:
    made = Programs(6)
    for rank in range(6):
        if rank > 0:
            made[rank].makes(recv(rank - 1, 8))
        if rank < 5:
            made[rank].makes(send(rank + 1, 8))
    made.end()
    return made


@pytest.mark.parametrize(
    ("message", "accelerator", "told"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", "none", True),
        ("AssertionError: Torch not compiled with CUDA enabled", "cuda", False),
        ("ValueError: no data", "none", False),
    ],
)
def test_a_program_for_cpus_that_asks_for_a_gpu_is_told_how_it_gets_one(
    tmp_path: Path, message: str, accelerator: str, told: bool
) -> None:
    made = Programs(2)
    for rank in range(2):
        made[rank].raises(message)
        made[rank].ends(1)
    _, report = concluded(tmp_path, made, of=2, accelerator=accelerator)
    assert any("--accelerator cuda" in note for note in report["notes"]) is told


def test_no_hosts_are_told_of_a_plan_which_has_none(tmp_path: Path) -> None:
    made = Programs(2)
    for rank in range(2):
        made[rank].raises("ValueError: no data")
        made[rank].ends(1)
    programs = {rank: replace(one, host=f"node-{rank}") for rank, one in made.programs().items()}
    directory = RunDirectory.create(tmp_path / "base", tmp_path / "run")
    report = conclude(directory, programs, Model(), FACTS)
    directory.close()
    assert list(report["hosts"]) == ["node-0", "node-1"]
    assert "node-1" not in directory.report_text.read_text()


def test_a_plan_in_which_nothing_is_wrong(tmp_path: Path) -> None:
    directory, report = concluded(tmp_path, pipeline(), steps=2)
    assert (report["outcome"], report["exit_code"]) == ("ok", 0)
    assert report["classes"] == [
        {"ranks": [0], "as": 0, "calls": 1},
        {"ranks": [1, 2, 3, 4], "as": 1, "calls": 2},
        {"ranks": [5], "as": 5, "calls": 1},
    ]
    first, *rest = directory.report_text.read_text().splitlines()
    assert first.startswith("OK  6 ranks, 1 to 2 calls each, 220.4 s")
    assert rest == [
        "alike: rank 0 makes 1 call; ranks 1-4 as rank 1 make 2 calls each; rank 5 makes 1 call",
        "planned 6 ranks on 2 cores in 3 min 40 s; 2 steps; nothing was left undecided",
    ]
    cases = ElementTree.parse(directory.junit).getroot().iter("testcase")
    assert [case.get("name") for case in cases] == [
        "run",
        "rank 0",
        "ranks 1-4 as rank 1",
        "rank 5",
    ]
    assert len(list(directory.ranks.glob("*.flight"))) == 6


def test_a_culprit_has_a_case_of_its_own(tmp_path: Path) -> None:
    made = Programs(6)
    for rank in range(6):
        made[rank].makes(broadcast(8) if rank == 4 else all_reduce(8))
    made.end()
    directory, report = concluded(tmp_path, made)
    assert (report["outcome"], report["exit_code"]) == ("op_mismatch", 91)
    suite = ElementTree.parse(directory.junit).getroot()
    failed = [
        case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["run", "rank 4"]
    assert "ranks 0-3,5 as rank 0" in [case.get("name") for case in suite.iter("testcase")]


def test_what_is_undecided_is_told_with_its_line(tmp_path: Path) -> None:
    made = pipeline()
    programs = made.programs()
    said = Undecided(CallSite(FILE, 40, "train"), "a comparison of loss.item()")
    made.programs = lambda: {  # type: ignore[method-assign]
        rank: replace(one, undecided=(said,) if rank < 5 else ()) for rank, one in programs.items()
    }
    directory, report = concluded(tmp_path, made)
    assert report["exit_code"] == 0
    assert report["undecided"] == [
        {
            "file": FILE,
            "line": 40,
            "function": "train",
            "what": said.what,
            "ranks": [0, 1, 2, 3, 4],
        }
    ]
    lines = directory.report_text.read_text().splitlines()
    place = "a comparison of loss.item() at train.py:40 in train (ranks 0-4)"
    assert f"  undecided: {place}" in lines
    assert lines[-1].endswith("; 1 place was left undecided")
    (notice,) = github.annotated(report, "/home/user")
    title = "title=distdebug%3A undecided"
    where = "undecided in the plan of ranks 0-4: a comparison of loss.item()"
    assert notice == f"::notice file=train.py,line=40,{title}::{where}"


def test_a_plan_of_which_not_all_is_known_does_not_pass(tmp_path: Path) -> None:
    made = pipeline()
    for rank in (4, 5):
        made[rank].events[-1] = CutOff("it ran for 120 s", CallSite(FILE, 77, "load"))
    directory, report = concluded(tmp_path, made)
    assert (report["outcome"], report["exit_code"]) == ("failed", 1)
    text = directory.report_text.read_text()
    assert "not known: what ranks 4,5 would do at train.py:77: it ran for 120 s" in text
    assert text.startswith("FAILED  not all is known of ranks 4,5, and nothing that is known is")
    assert text.endswith("nothing was left undecided; not all is known of ranks 4,5\n")


def test_what_a_rank_wrote_that_ended_by_itself_is_told(tmp_path: Path) -> None:
    """`sys.exit("no GPU")` is how scripts say why they cannot run."""
    made = Programs(6)
    for rank in range(6):
        made[rank].ends(1)
    directory = RunDirectory.create(tmp_path / "base", tmp_path / "run")
    for rank in range(6):
        directory.stderr(rank).write_text("a warning\nno \x1b[1mGPU\n\n")
    report = conclude(directory, made.programs(), Model(), FACTS)
    directory.close()
    assert report["exit_code"] == 94
    lines = directory.report_text.read_text().splitlines()
    assert lines[0] == "RANK DIED  all 6 ranks exited with status 1"
    assert "  rank 0 wrote: no \\x1b[1mGPU" in lines


def test_a_warning_fails_a_strict_plan(tmp_path: Path) -> None:
    made = Programs(2, backend="mpi")
    for rank in range(2):
        made[rank].makes(send(1 - rank, 8))
        made[rank].makes(recv(1 - rank, 8))
    made.end()
    (tmp_path / "easy").mkdir()
    (tmp_path / "strict").mkdir()
    _, report = concluded(tmp_path / "easy", made)
    assert (report["outcome"], report["exit_code"], report["warnings"]) == ("ok", 0, 1)
    _, report = concluded(tmp_path / "strict", made, strict=True)
    assert (report["outcome"], report["exit_code"]) == ("deadlock", 92)

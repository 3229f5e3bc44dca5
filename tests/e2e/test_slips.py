"""Slips: what fixtures/slips says of a rank whose calls part from the others', and of its twin.

The lines come from marks in the programs, all else from `expected.json`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdebug.record.reading.records import Records
from tests.support import runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes
from tests.support.on_nodes import Layout, check_nothing_is_left, needs_one_verdict
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote

from .test_fixtures import FIXTURES

SLIPS = FIXTURES / "slips"
TABLE: dict[str, dict[str, Any]] = json.loads((SLIPS / "expected.json").read_text())
BUGGY, CORRECT = TABLE["buggy"], TABLE["correct"]
SHORT = {
    *("two_sums_swapped", "skipped_then_end", "swapped_in_sub_group"),
    *("skipped_in_a_package", "swapped_behind_a_layer"),
    *("work_stealing", "request_server", "join_of_torch"),
}
BY_THE_CLOCK = {"skipped_then_deadline"}
"""Programs whose length no plan can know."""
LEVELS = ("INFO", "DETAIL")
WITHIN_S, WITHIN_BUSY_S = 1.0, 20.0


def some(names: dict[str, Any], short: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.long]) for name in names]


def busy() -> bool:
    """Whether a rank may wait for a core: it comes last then, and a warning may, too."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def started(
    zygote: Zygote, place: Path, script: str, size: int, level: str, wrong: int = -1, *flags: str
) -> runs.Run:
    words = ["--debug-level", level, *flags]
    return zygote.run(size, [str(SLIPS / script)], place, words, {"WRONG_RANK": str(wrong)})


def silent(done: runs.Run) -> None:
    """Nothing is found at the end, and nothing was meanwhile."""
    late = {"straggler"} if busy() else set()
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert {one["kind"] for one in done.report["findings"]} <= late, done.explain()
    meanwhile = [one for one in found_meanwhile(done) if one["finding"] not in late]
    assert meanwhile == [], done.explain()


def found_meanwhile(done: runs.Run) -> list[dict[str, Any]]:
    path = done.directory / "events.jsonl"
    events = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    return [one for one in events if one["kind"] == "finding"]


def limit_s() -> float:
    return WITHIN_BUSY_S if busy() else WITHIN_S


def marked(name: str, mark: str) -> int | None:
    lines = (SLIPS / "buggy" / f"{name}.py").read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {mark}")]
    return found[0] if found else None


class Expected:
    """The verdict of a buggy program: its row of `expected.json`, and its marks."""

    def __init__(self, name: str) -> None:
        row = BUGGY[name]
        self.size: int = row["nproc"]
        self.wrong: int = row["wrong"]
        self.group: list[int] = row.get("group", list(range(self.size)))
        self.sides: list[int] = row.get("sides", self.group)
        self.seq: int = row["seq"]
        self.slip: str = row["slip"]
        self.culprits = [self.wrong] if len(self.sides) > 2 else []
        self.timed: bool = row.get("timed", False)
        self.odd, self.usual = (marked(name, mark) for mark in ("look here", "the others"))
        assert None not in (self.odd, self.usual)
        kind, code, culprits = row.get("error", (None, 0, None))
        self.error: tuple[str, int] | None = (kind, code) if kind else None
        self.error_culprits: list[int] | None = culprits
        self.who = self.wrong if row.get("told", True) else None
        skipped = marked(name, "skipped") or self.usual
        lines = {"skipped": skipped, "repeated": self.odd}
        self.sentence = f"rank {self.who} {self.slip}"
        if self.slip in lines:
            self.sentence += f" {name}.py:{lines[self.slip]}"
        self.instead = f", or {row['or']} {name}.py:{lines[row['or']]} " if "or" in row else ""

    def check_names(self, text: str, done: runs.Run) -> None:
        """The sentence says where lines part and, where that can be known, what who has done."""
        assert re.search(rf"#{self.seq}\b", text), done.explain()
        if self.who is not None:
            assert re.search(rf"\b{re.escape(self.sentence)}\b", text), (text, done.explain())
        assert self.instead in text, (text, done.explain())

    def check_finding(
        self, found: dict[str, Any], script: Path, done: runs.Run, timed: bool
    ) -> None:
        assert (found["kind"], found["severity"]) == ("misaligned", "warning"), done.explain()
        assert (found["seq"], found["group"]["ranks"]) == (self.seq, self.group), done.explain()
        assert (found["slip"], found["culprits"]) == (self.slip, self.culprits), done.explain()
        lines = {rank: one["location"] for rank, one in found["ranks"].items()}
        assert {one["file"] for one in lines.values()} == {str(script)}, lines
        expected = {str(one): self.odd if one == self.wrong else self.usual for one in self.sides}
        assert {rank: one["line"] for rank, one in lines.items()} == expected, done.explain()
        self.check_names(found["message"], done)
        if self.timed and timed:
            assert found["detected_after_s"] <= limit_s(), done.explain()

    def check_time(self, done: runs.Run) -> None:
        """The warning came soon after the last of the calls that met there was made."""
        warned = [one for one in found_meanwhile(done) if one["finding"] == "misaligned"]
        assert warned, (found_meanwhile(done), done.explain())
        self.check_names(warned[0]["message"], done)
        records = Records(done.directory / "ranks")
        records.look()
        (snapshot,) = records.snapshots(finished=True)
        made = []
        for rank in map(snapshot.ranks.__getitem__, self.sides):
            keys = [one.key for one in rank.groups.values() if list(one.ranks) == self.group]
            met = rank.history.at(keys[0], self.seq) if rank.history is not None else None
            made += [met.issued_ns] if met is not None else []
        if made:
            after_s = (warned[0]["time_ns"] - max(made)) / 1e9
            assert after_s <= limit_s(), done.explain()


def check(name: str, done: runs.Run, strict: bool = False, timed: bool = True) -> None:
    expected, script = Expected(name), SLIPS / "buggy" / f"{name}.py"
    findings, report = done.report["findings"], done.report
    if expected.error is None:
        verdict = ("misaligned", 91) if strict else ("ok", 0)
        assert (report["outcome"], done.exit_code) == verdict, done.explain()
        findings = [one for one in findings if one["kind"] != "straggler" or not busy()]
        assert len(findings) == 1, done.explain()
        expected.check_finding(findings[0], script, done, timed)
        if timed:  # it is told while the run goes on, too
            assert f"distdebug: misaligned: {findings[0]['message']}" in done.stderr, done.explain()
    else:
        assert (report["outcome"], done.exit_code) == expected.error, done.explain()
        error, *others = findings
        late = {"straggler"} if busy() else set()
        assert {one["kind"] for one in others} <= {"misaligned", *late}, done.explain()
        for one in (one for one in others if one["kind"] == "misaligned"):
            expected.check_finding(one, script, done, timed)
        if expected.error_culprits is not None:
            assert sorted(error["culprits"]) == expected.error_culprits, done.explain()
        assert error["parted_at"] == expected.seq, done.explain()
        assert error["details"][0].startswith(f"the ranks' lines part at #{expected.seq}")
        expected.check_names(error["details"][0], done)
    if expected.timed and timed:
        expected.check_time(done)


@pytest.mark.parametrize("name", some(BUGGY, SHORT))
def test_slip(name: str, tmp_path: Path, zygote: Zygote) -> None:
    expected = Expected(name)
    script = f"buggy/{name}.py"
    done = started(zygote, tmp_path, script, expected.size, "INFO", expected.wrong)
    check(name, done)


@pytest.mark.long
@pytest.mark.parametrize("name", BUGGY)
def test_slip_at_detail_and_strict(name: str, tmp_path: Path, zygote: Zygote) -> None:
    expected = Expected(name)
    script = f"buggy/{name}.py"
    done = started(zygote, tmp_path, script, expected.size, "DETAIL", expected.wrong, "--strict")
    check(name, done, strict=True)


@pytest.mark.long
@pytest.mark.root
@needs_one_verdict
@pytest.mark.parametrize("name", ["swapped_by_dict_order", "skipped_then_end"])
def test_slip_over_two_nodes(
    name: str, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    expected, nodes = Expected(name), make_nodes(2)
    program, wrong = [str(SLIPS / "buggy" / f"{name}.py")], {"WRONG_RANK": str(expected.wrong)}
    layout = Layout.over(2, expected.size)
    for done in forked_nodes.run(nodes, layout, program, ["--strict"], wrong):
        check(name, done, strict=True, timed=False)
    check_nothing_is_left(nodes)


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
@pytest.mark.parametrize("name", [one for one in BUGGY if one not in BY_THE_CLOCK])
def test_plan_of_a_slip(
    name: str, tmp_path: Path, torch_loaded: TorchLoaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = planned(torch_loaded, tmp_path, f"buggy/{name}.py", BUGGY[name], monkeypatch)
    check(name, done, timed=False)


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

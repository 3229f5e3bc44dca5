"""Every program below fixtures/scripts gets exactly the verdict that fixtures/expected says."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EXPECTED = sorted(path.stem for path in (FIXTURES / "expected").glob("*.json"))


ON_TCP = FIXTURES.parent / "tests" / "support" / "on_tcp"

SHORT_PER_VERDICT = 2
SHORT_CORRECT = 16
SHORT_ON_TCP = {
    "ddp_join_uneven",
    "ddp_no_sync",
    "deadlock_collective_p2p",
    "died_sigkill",
    "missing_stopped",
    "op_after_500_steps",
    "p2p_size",
    "uneven_splits",
}
SHORT_AT_DETAIL = {
    "batched_exchange",
    "ddp_transformer",
    "deadlock_two_groups",
    "op_after_500_steps",
}
UNLIKE_ON_TCP = {
    "join_stale_file_store": "distcore tells old data from new: the run succeeds",
    "unsafe_reduce_scatter_input": "distcore minds the strides",
    "unsafe_strided_broadcast": "distcore minds the strides",
    "unsafe_transposed_broadcast": "distcore minds the strides",
}
"""Programs whose verdict is another one on tcp, and why."""
UNLIKE_AT_DETAIL = {"reshaped_view": "another shape of as many elements is an error there"}
"""The same at DETAIL."""


def load(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / "expected" / f"{name}.json").read_text())


def parameters() -> list[Any]:
    """Every program; beyond the first few of each verdict they are marked long, because each
    costs an import of torch per rank."""
    seen: Counter[tuple[str, str | None]] = Counter()
    found = []
    for name in EXPECTED:
        expected = load(name)
        verdict = (expected["outcome"], expected["cause"])
        seen[verdict] += 1
        enough = SHORT_CORRECT if verdict[0] == "ok" else SHORT_PER_VERDICT
        marks = [pytest.mark.long] if seen[verdict] > enough else []
        found.append(pytest.param(name, marks=marks))
    return found


def parameters_on_tcp() -> list[Any]:
    marks = {name: [] if name in SHORT_ON_TCP else [pytest.mark.long] for name in EXPECTED}
    return [pytest.param(name, marks=marks[name]) for name in EXPECTED if name not in UNLIKE_ON_TCP]


def parameters_at_detail() -> list[Any]:
    marks = {name: [] if name in SHORT_AT_DETAIL else [pytest.mark.long] for name in EXPECTED}
    return [
        pytest.param(name, marks=marks[name]) for name in EXPECTED if name not in UNLIKE_AT_DETAIL
    ]


@pytest.mark.parametrize("name", parameters())
def test_verdict(name: str, tmp_path: Path) -> None:
    check_verdict(name, tmp_path, {})


@pytest.mark.parametrize("name", parameters_on_tcp())
def test_verdict_on_tcp(name: str, tmp_path: Path) -> None:
    """The same with distcore below the layer, where the program says gloo."""
    check_verdict(name, tmp_path, {"PYTHONPATH": str(ON_TCP), "ON_TCP_EVERYWHERE": "1"})


@pytest.mark.parametrize("name", parameters_at_detail())
def test_verdict_at_detail(name: str, tmp_path: Path) -> None:
    """The same where ranks agree before each call."""
    check_verdict(name, tmp_path, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def test_another_shape_at_detail(tmp_path: Path) -> None:
    script = FIXTURES / "scripts" / load("reshaped_view")["script"]
    done = runs.run("run", ["--debug-level", "DETAIL", "-n", "3", str(script)], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("shape_mismatch", 91), done.explain()
    assert done.errors[0]["culprits"] == [1], done.explain()


def check_verdict(name: str, tmp_path: Path, extra: dict[str, str]) -> None:
    expected = load(name)
    script = FIXTURES / "scripts" / expected["script"]
    arguments = list(expected["args"])
    if expected["command"] == "run":
        arguments += ["-n", str(expected["nproc"]), str(script)]
    else:
        arguments += ["--", sys.executable, str(script)]
    arguments += expected["script_args"]
    done = runs.run(expected["command"], arguments, tmp_path, extra)
    assert done.report["outcome"] == expected["outcome"], done.explain()
    assert done.exit_code == expected["exit_code"], done.explain()
    assert sorted(set(done.warnings)) == sorted(expected["warnings"]), done.explain()
    if expected["severity"] == "error" and expected["outcome"] != "ok":
        found = done.errors[0]
        assert found["kind"] == expected["outcome"]
        check_finding(found, done, expected, script)
    if expected["severity"] == "warning":
        found = next(one for one in done.report["findings"] if one["kind"] in expected["warnings"])
        check_finding(found, done, expected, script)


def check_finding(
    found: dict[str, Any], done: runs.Run, expected: dict[str, Any], script: Path
) -> None:
    if expected["culprits"] is not None:
        assert sorted(found["culprits"]) == sorted(expected["culprits"]), done.explain()
    if expected["cause"] is not None:
        assert found["cause"] == expected["cause"], done.explain()
    if found["proven"] and found["severity"] == "error":
        # A safety net: typically 0.2 s, but the machine may be busy with another test.
        assert found["detected_after_s"] < 10, done.explain()
    if expected["line"] is not None:
        where = {
            "culprit": found["culprits"],
            "victim": found["victims"],
            "any": [int(rank) for rank in found["ranks"]],
        }[expected["line_of"]]
        places = [found["ranks"].get(str(rank), {}).get("location") for rank in where]
        lines = {place["line"] for place in places if place and place["file"] == str(script)}
        assert lines & {expected["line"], *expected["or_lines"]}, (places, done.explain())


@pytest.mark.parametrize("name", EXPECTED)
def test_expectation_matches_script(name: str) -> None:
    """The line that is expected is the line that the script marks."""
    expected = load(name)
    lines = (FIXTURES / "scripts" / expected["script"]).read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# <- look here" in line]
    assert marked == ([] if expected["line"] is None else [expected["line"]])


def test_every_script_is_expected() -> None:
    scripts = sorted(path.stem for path in (FIXTURES / "scripts").glob("*/*.py"))
    assert scripts == EXPECTED

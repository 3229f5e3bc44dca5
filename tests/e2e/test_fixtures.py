"""Every program below fixtures/scripts gets exactly the verdict that fixtures/expected says."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support import fixture_table, runs
from tests.support.zygote import Zygote

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EXPECTED = sorted(path.stem for path in (FIXTURES / "expected").glob("*.json"))


ON_TCP = FIXTURES.parent / "tests" / "support" / "on_tcp"

BY_COMMAND = {"died_sigkill", "exception_process"}
"""Run as a user would in every test run, not by forking alone."""
SHORT_PER_VERDICT = 1
BUSY = 10
"""So many times as long as on a machine of its own a run may take beside other tests."""
SHORT_CORRECT = 10
TELLING = {"ddp_transformer", "exit_overlapped", "missing_data_loader", "missing_stopped"}
SHORT_ON_TCP = {
    "ddp_join_uneven",
    "ddp_no_sync",
    "deadlock_collective_p2p",
    "died_sigkill",
    "exit_dropped_isend",
    "exit_store_host",
    "handles_torch_need_not_wait_for",
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
    "op_functional_gather",
    "pipelined_two_groups",
}
LUCKY_ON_TCP = {"deadlock_ring": "deadlock", "unmatched_send": "unmatched_p2p"}
"""Programs that end well on tcp, whose small messages are buffered; the warning says so."""
UNLIKE_ON_TCP = {
    **dict.fromkeys(LUCKY_ON_TCP, "small messages are buffered"),
    "exception_partial_sums": "distcore leaves alone what is not the root's",
    "unsafe_reduce_scatter_input": "distcore minds the strides",
    "unsafe_strided_broadcast": "distcore minds the strides",
    "unsafe_transposed_broadcast": "distcore minds the strides",
}
"""Programs that fail on gloo and succeed on tcp, and why."""
UNLIKE_AT_DETAIL = {"reshaped_view": "another shape of as many elements is an error there"}
"""Programs whose verdict is another one at DETAIL."""


def by_command() -> list[Any]:
    """Every program as a user starts it; mostly long, for each rank imports torch by itself."""
    return [chosen(name, BY_COMMAND) for name in EXPECTED]


def forked(short: set[str], without: Iterable[str] = ()) -> list[Any]:
    """Every program whose ranks torchrun starts, but for those `without`. Long if not `short`."""
    names = [name for name in EXPECTED if fixture_table.expected(name)["command"] == "run"]
    return [chosen(name, short) for name in names if name not in without]


def a_few_of_each() -> set[str]:
    """The first programs of each verdict, and some that have shown what the others did not."""
    seen: Counter[tuple[str, str | None]] = Counter()
    found = set(TELLING)
    for name in EXPECTED:
        expected = fixture_table.expected(name)
        verdict = (expected["outcome"], expected["cause"])
        seen[verdict] += 1
        if seen[verdict] <= (SHORT_CORRECT if verdict[0] == "ok" else SHORT_PER_VERDICT):
            found.add(name)
    return found


def chosen(name: str, short: set[str]) -> Any:
    return pytest.param(name, marks=[] if name in short else [pytest.mark.long])


@pytest.mark.parametrize("name", by_command())
def test_verdict(name: str, tmp_path: Path) -> None:
    expected = fixture_table.expected(name)
    check_verdict(expected, run_by_command(expected, tmp_path))


@pytest.mark.parametrize("name", forked(a_few_of_each()))
def test_verdict_of_forked_ranks(name: str, tmp_path: Path, zygote: Zygote) -> None:
    expected = fixture_table.expected(name)
    check_verdict(expected, run_forked(expected, tmp_path, zygote, {}))


@pytest.mark.parametrize("name", forked(SHORT_ON_TCP, UNLIKE_ON_TCP))
def test_verdict_on_tcp(name: str, tmp_path: Path, zygote: Zygote) -> None:
    """The same with distcore below the layer, where the program says gloo."""
    extra = {"PYTHONPATH": str(ON_TCP), "ON_TCP_EVERYWHERE": "1"}
    expected = fixture_table.expected(name)
    check_verdict(expected, run_forked(expected, tmp_path, zygote, extra))


@pytest.mark.parametrize("name", [chosen(name, {"deadlock_ring"}) for name in UNLIKE_ON_TCP])
def test_success_on_tcp(name: str, tmp_path: Path, zygote: Zygote) -> None:
    extra = {"PYTHONPATH": str(ON_TCP), "ON_TCP_EVERYWHERE": "1"}
    expected = fixture_table.expected(name)
    done = run_forked(expected, tmp_path, zygote, extra)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    lucky = [one for one in done.report["findings"] if "needs luck" in one["message"]]
    kinds = [LUCKY_ON_TCP[name]] if name in LUCKY_ON_TCP else []
    assert [one["kind"] for one in lucky] == kinds, done.explain()
    for one in lucky:
        check_finding(one, done, expected, FIXTURES / "scripts" / expected["script"])


@pytest.mark.parametrize("name", forked(SHORT_AT_DETAIL, UNLIKE_AT_DETAIL))
def test_verdict_at_detail(name: str, tmp_path: Path, zygote: Zygote) -> None:
    """The same where ranks agree before each call."""
    expected = fixture_table.expected(name)
    extra = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    check_verdict(expected, run_forked(expected, tmp_path, zygote, extra))


def test_another_shape_at_detail(tmp_path: Path, zygote: Zygote) -> None:
    script = FIXTURES / "scripts" / fixture_table.expected("reshaped_view")["script"]
    done = zygote.run(3, [str(script)], tmp_path, ["--debug-level", "DETAIL"])
    assert (done.report["outcome"], done.exit_code) == ("shape_mismatch", 91), done.explain()
    assert done.errors[0]["culprits"] == [1], done.explain()


def run_forked(
    expected: dict[str, Any],
    tmp_path: Path,
    zygote: Zygote,
    extra: dict[str, str],
    mpiexec: bool = False,
) -> runs.Run:
    script = FIXTURES / "scripts" / expected["script"]
    program = [str(script), *expected["script_args"]]
    size, flags = expected["nproc"], expected["args"]
    return zygote.run(size, program, tmp_path, flags, extra, mpiexec=mpiexec)


def run_by_command(expected: dict[str, Any], tmp_path: Path) -> runs.Run:
    script = FIXTURES / "scripts" / expected["script"]
    arguments = list(expected["args"])
    if expected["command"] == "run":
        arguments += ["-n", str(expected["nproc"]), str(script)]
    else:
        arguments += ["--", sys.executable, str(script)]
    arguments += expected["script_args"]
    return runs.run(expected["command"], arguments, tmp_path)


def starved() -> bool:
    """Whether the machine has so much else to do that ranks stand in a queue for its cores."""
    return os.getloadavg()[0] > 4 * (os.cpu_count() or 1)


def check_verdict(expected: dict[str, Any], done: runs.Run) -> None:
    script = FIXTURES / "scripts" / expected["script"]
    assert done.report["outcome"] == expected["outcome"], done.explain()
    assert done.exit_code == expected["exit_code"], done.explain()
    assert done.report["duration_s"] < BUSY * expected["within_s"], done.explain()
    warnings = set(done.warnings)
    if starved() and "straggler" not in expected["warnings"]:
        warnings.discard("straggler")  # one rank did come last, for want of a core
    assert sorted(warnings) == sorted(expected["warnings"]), done.explain()
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
    if found["proven"] and found["severity"] == "error" and "plan" not in done.report:
        # A safety net: typically 0.2 s, but the machine may be busy with another test.
        assert found["detected_after_s"] is not None, done.explain()
        assert found["detected_after_s"] < 30, done.explain()
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
    expected = fixture_table.expected(name)
    lines = (FIXTURES / "scripts" / expected["script"]).read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# <- look here" in line]
    assert marked == ([] if expected["line"] is None else [expected["line"]])


def test_every_script_is_expected() -> None:
    scripts = sorted(path.stem for path in (FIXTURES / "scripts").glob("*/*.py"))
    assert scripts == EXPECTED


def test_the_chosen_ones_exist() -> None:
    assert set(EXPECTED) >= BY_COMMAND | TELLING | SHORT_ON_TCP | SHORT_AT_DETAIL

"""`distdebug compare` and `report --traffic` on records of real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distdebug.cli import main
from fixtures import recorded

EQUAL, DIFFERENT, BAD_INPUT = 0, 1, 2


@pytest.fixture
def run(tmp_path: Path) -> str:
    recorded.unpack("finished", tmp_path / "finished")
    return str(tmp_path / "finished")


@pytest.fixture
def other(tmp_path: Path) -> str:
    recorded.unpack("mismatch", tmp_path / "mismatch")
    return str(tmp_path / "mismatch")


def test_a_run_is_equal_to_itself(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", run, run]) == EQUAL
    assert "EQUAL" in capsys.readouterr().out


def test_two_runs_differ(run: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", run, other, "--json"]) == DIFFERENT
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "distdebug.compare/1"
    assert found["equal"] is False
    assert found["first"] == found["pairings"][0]["differences"][0]
    assert {"a", "b", "kind", "after", "step", "times"} == found["first"].keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "required"),
        (["nowhere", "nowhere"], "there is no run directory nowhere"),
        (["--ignore", "colours"], "--ignore takes some of lines,sizes,steps,async"),
        (["--bandwidth-gbs", "0"], "--bandwidth-gbs takes a number above 0"),
        (["--latency-us", "soon"], "must be a number from 0 on, not 'soon'"),
    ],
)
def test_bad_input(
    words: list[str], said: str, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words if not words or words[0] == "nowhere" else [run, run, *words]
    assert main(["compare", *given]) == BAD_INPUT
    assert said in capsys.readouterr().err


def test_a_run_without_records(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in Path(run, "ranks").iterdir():
        record.unlink()
    assert main(["compare", run, run]) == BAD_INPUT
    assert "has no rank's record" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "more"), [(2, ""), (90, "; and 87 more")])
def test_a_run_with_nothing_but_damaged_records(
    count: int, more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ranks").mkdir(mode=0o700)
    (tmp_path / "run.json").write_text('{"schema": "distdebug.run/1"}')
    for rank in range(count):
        (tmp_path / "ranks" / f"{rank}.flight").write_bytes(b"")
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("is not a flight record") == min(count, 3)
    assert ("more" in said) == bool(more)
    assert more in said


def test_traffic_of_a_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--traffic", run]) == 0
    text = capsys.readouterr().out
    assert "on its link" in text
    assert "default_pg" in text
    assert main(["report", "--traffic", "--json", run, "--bandwidth-gbs", "100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "distdebug.traffic/1"
    assert found["link"] == {"latency_us": 10.0, "bandwidth_gbs": 100.0}
    assert main(["report", "--traffic", "--junit", run]) == BAD_INPUT


def test_replicas_of_a_run_without_the_check(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--replicas", run]) == 0
    assert "run with `--check replicas`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--values"], "has no values: record them by `distdebug run --values"),
        (["--shift", "3"], "--shift is of --values"),
        (["--values", "--rtol", "much"], "must be a relative difference from 0 on"),
    ],
)
def test_no_values_to_compare(
    run: str, more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", run, run, *more]) == BAD_INPUT
    assert sentence in capsys.readouterr().err

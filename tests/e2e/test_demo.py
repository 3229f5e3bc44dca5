"""`distdebug demo` ends with the verdict of the planted bug, in any folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from distdebug import cli
from distdebug.record.runs.run_directory import BASE
from tests.support import runs

PROGRAM = Path(__file__).parents[2] / "debugger/commands/programs/demo.py"


def test_it_is_told_at_the_lines_of_a_program_that_can_be_read_there(tmp_path: Path) -> None:
    (tmp_path / "demo.py").write_text("raise SystemExit('of another')")
    done = subprocess.run(
        [str(runs.DISTDEBUG), "demo"],
        cwd=tmp_path,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 91, done.stdout + done.stderr
    base = tmp_path / BASE
    assert (base / PROGRAM.name).read_bytes() == PROGRAM.read_bytes()
    report = json.loads((base / "latest" / "report.json").read_text())
    (finding,) = report["findings"]
    assert (finding["kind"], finding["culprits"]) == ("op_mismatch", [2])
    places = {rank: told["location"] for rank, told in finding["ranks"].items()}
    lines = PROGRAM.read_text().splitlines()
    assert {place["file"] for place in places.values()} == {str(base / PROGRAM.name)}
    assert "dist.broadcast" in lines[places["2"]["line"] - 1]
    assert "dist.all_reduce" in lines[places["0"]["line"] - 1]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["train.py"], "demo takes flags alone, not 'train.py'"),
        (["--tuii"], "unknown flag '--tuii': did you mean --tui?"),
    ],
)
def test_what_it_does_not_take_is_said_before_anything_is_made(
    argv: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", *argv]) == 2
    assert says in capsys.readouterr().err
    assert not os.listdir(tmp_path)


def test_where_nothing_can_be_written_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    BASE.mkdir()
    (BASE / PROGRAM.name).mkdir()
    assert cli.main(["demo"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("distdebug: the program of the demo cannot be written to .distdebug/")
    assert said.endswith("change to a folder of your own\n")

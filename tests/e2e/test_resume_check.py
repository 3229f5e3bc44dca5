"""`distdebug resume-check`: what is not as it would have been, by quantity, name and rank; and
nothing where all is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs

FIXTURES = Path(__file__).parents[2] / "fixtures" / "resume"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
QUICK = ("as it was", "no_moments of train.py")


def named(row: dict[str, Any]) -> str:
    return str(row.get("name") or f"{row['bug']} of {row['program']}")


def cases(which: str) -> list[Any]:
    return [
        pytest.param(row, id=named(row), marks=[] if named(row) in QUICK else [pytest.mark.long])
        for row in EXPECTED[which]
    ]


def check(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for name in ("train.py", "sharded.py"):
        shutil.copy(FIXTURES / name, tmp_path)
    command = [str(runs.DISTDEBUG), "resume-check", "--json", "-n", "2", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert {one for one in os.listdir(tmp_path) if one[0] != "."} == {"sharded.py", "train.py"}
    return done


@pytest.mark.parametrize("row", cases("right"))
def test_what_goes_on_as_it_would_have(row: dict[str, Any], tmp_path: Path) -> None:
    done = check(tmp_path, *row.get("flags", ()), *row["program"].split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["saved_at"] == 3


@pytest.mark.parametrize("row", cases("wrong"))
def test_what_does_not(row: dict[str, Any], tmp_path: Path) -> None:
    program = [*row["program"].split(), "--bug", row["bug"]]
    done = check(tmp_path, *row.get("flags", ()), *program)
    assert done.returncode == 1, done.stdout + done.stderr
    if row.get("fails"):
        assert "the run that goes on has failed" in done.stdout
        return
    document = json.loads(done.stdout)
    first = document["first"]
    assert (first["step"], first["quantity"]) == (row["step"], row["quantity"]), first
    assert first["ranks"] == row.get("ranks", [0, 1])
    assert row.get("names", "") in first["name"]
    assert any(row["cause"] in one for one in document["causes"]) if "cause" in row else True


@pytest.mark.long
def test_a_program_that_never_saves(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "net = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    net(torch.ones(2)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    (tmp_path / "never.py").write_text(program)
    command = [str(runs.DISTDEBUG), "resume-check", "never.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the program has never called torch.save" in done.stderr


def test_no_script() -> None:
    command = [str(runs.DISTDEBUG), "resume-check", "-n", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "no script given" in done.stderr) == (2, True)

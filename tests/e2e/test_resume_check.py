"""`distdebug resume-check`: what is not as it would have been, by quantity, name and rank; and
nothing where all is. The three runs of a check are forked, but for one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from distdebug import cli
from distdebug.commands import resume_check
from distdebug.record.values import STOP
from tests.support import runs
from tests.support.zygote import Zygote

FIXTURES = Path(__file__).parents[2] / "fixtures" / "resume"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
QUICK = ("as it was", "no_moments of train.py")
Check = Callable[..., tuple[int, str]]


def named(row: dict[str, Any]) -> str:
    return str(row.get("name") or f"{row['bug']} of {row['program']}")


def cases(which: str) -> list[Any]:
    return [
        pytest.param(
            row,
            id=named(row),
            marks=[
                *([] if named(row) in QUICK else [pytest.mark.long]),
                pytest.mark.skipif(
                    "needs" in row and find_spec(row["needs"]) is None, reason="not installed"
                ),
            ],
        )
        for row in EXPECTED[which]
    ]


class _Subprocess:
    """The module `subprocess` for the command, which starts `distdebug run` by it."""

    PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote, self._folder = zygote, folder

    def run(
        self, command: Sequence[str], env: Mapping[str, str], **_options: Any
    ) -> subprocess.CompletedProcess[str]:
        begin = command.index("--values")
        assert (command[begin + 1], command[begin + 3]) == ("--run-dir", "-n")
        directory, size, program = command[begin + 2], command[begin + 4], command[begin + 5 :]
        extra = {STOP: env[STOP]} if STOP in env else {}
        arguments = (int(size), program, self._folder, ["--values"], extra)
        done = self._zygote.start(*arguments, directory=self._folder / directory).finish()
        said = done.stdout + done.stderr
        return subprocess.CompletedProcess(command, done.exit_code, said)


@pytest.fixture
def check(
    tmp_path: Path,
    zygote: Zygote,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Check:
    """Runs the command on two ranks with more words; its exit code, and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resume_check, "subprocess", _Subprocess(zygote, tmp_path))
    programs = {one.name for one in FIXTURES.glob("*.py")}
    for name in programs:
        shutil.copy(FIXTURES / name, tmp_path)

    def check(*words: str) -> tuple[int, str]:
        code = cli.main(["resume-check", "--json", "-n", "2", *words])
        assert {one for one in os.listdir(tmp_path) if one[0] != "."} == programs
        return code, capsys.readouterr().out

    return check


@pytest.mark.parametrize("row", cases("right"))
def test_what_goes_on_as_it_would_have(row: dict[str, Any], check: Check) -> None:
    code, said = check(*row.get("flags", ()), *row["program"].split())
    assert code == 0, said
    assert json.loads(said)["saved_at"] == 3


@pytest.mark.parametrize("row", cases("wrong"))
def test_what_does_not(row: dict[str, Any], check: Check) -> None:
    program = [*row["program"].split(), "--bug", row["bug"]]
    code, said = check(*row.get("flags", ()), *program)
    assert code == 1, said
    if row.get("fails"):
        assert "the run that goes on has failed" in said
        return
    document = json.loads(said)
    first = document["first"]
    assert (first["step"], first["quantity"]) == (row["step"], row["quantity"]), first
    assert first["ranks"] == row.get("ranks", [0, 1])
    assert row.get("names", "") in first["name"]
    assert any(row["cause"] in one for one in document["causes"]) if "cause" in row else True


def test_a_program_that_never_saves(tmp_path: Path) -> None:
    """As a user starts it."""
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


@pytest.mark.long
def test_it_goes_on_as_a_user_starts_it(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "train.py", tmp_path)
    command = [str(runs.DISTDEBUG), "resume-check", "-n", "2", "train.py", "--steps", "6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [one for one in os.listdir(tmp_path) if one[0] != "."] == ["train.py"]


def test_no_script() -> None:
    command = [str(runs.DISTDEBUG), "resume-check", "-n", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "no script given" in done.stderr) == (2, True)

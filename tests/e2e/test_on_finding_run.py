"""`--on-finding-run`: a program hears of each finding, and is never in the way of the run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.supervisor import finding_command
from distdebug.supervisor.finding_command import OUTPUT, FindingCommand
from tests.support import runs

HOOK = """
import pathlib, sys
heard = sys.stdin.read()
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text() + heard + "\\n" if path.exists() else heard + "\\n")
print("told", sys.argv[2:])
"""
PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    raise ValueError("$(touch touched) `touch touched`; touch touched")
dist.all_reduce(torch.ones(4))
"""


def test_the_program_hears_of_the_finding_once(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(HOOK)
    (tmp_path / "train.py").write_text(PROGRAM)
    command = f"{sys.executable} hook.py heard.jsonl '$HOME' ';' id"
    run = runs.run("run", ["-n", "2", "--on-finding-run", command, "train.py"], tmp_path)
    assert run.exit_code == 1, run.explain()
    lines = (tmp_path / "heard.jsonl").read_text().splitlines()
    [heard] = [json.loads(line) for line in lines]
    assert heard["schema"] == finding_command.SCHEMA
    assert heard["finding"]["kind"] == "rank_exception"
    assert heard["finding"]["culprits"] == [1]
    assert "touch touched" in heard["finding"]["message"]
    assert not (tmp_path / "touched").exists()
    said = (Path(heard["run_dir"]) / OUTPUT).read_text()
    assert said == "told ['$HOME', ';', 'id']\n"  # no shell has read the words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((sys.executable, "-c", "import time; time.sleep(60)"), "took longer than 0.3 s"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with 3"),
        (("/nowhere/at/all",), "cannot be started: No such file or directory"),
    ],
)
def test_one_that_fails_or_hangs_is_told_and_costs_nothing(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding_command, "FINDING_COMMAND_S", 0.3 if "sleep" in words[-1] else 30)
    said: list[str] = []
    command = FindingCommand(words, tmp_path, said.append)
    began_s = time.monotonic()
    finding = Finding("rank_died", "it", (1,), (0,))
    command.tell([finding])
    command.tell([finding])
    assert time.monotonic() - began_s < 1
    command.finish()
    assert time.monotonic() - began_s < 30
    [line] = said
    assert sentence in line


@pytest.mark.parametrize("words", ["/no/such/program x", "", "'unclosed"])
def test_what_cannot_be_run_is_refused_at_once(words: str, tmp_path: Path) -> None:
    run = runs.run("run", ["--on-finding-run", words, "x.py"], tmp_path)
    assert run.exit_code == 2
    assert "--on-finding-run" in run.stderr
    assert run.stderr.count("\n") == 1

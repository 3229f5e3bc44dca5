"""A rank that is killed before it has a record is named, by what its parent knows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs

LAUNCHER = """
import os, subprocess, sys
ranks = []
for rank in range(2):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, "rank.py", sys.argv[1]]
    ranks.append(subprocess.Popen(command, env=environment))
codes = [ranks[1].wait()]
if any(codes):
    ranks[0].terminate()
codes.append(ranks[0].wait())
sys.exit(int(any(codes)))
"""
RANK = """
import os, signal, sys, time
until = time.monotonic() + 1.5  # as long as an import of torch takes
while time.monotonic() < until:
    time.sleep(0.01)
if sys.argv[1] == "killed":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.fixture(name="launcher")
def _launcher(tmp_path: Path) -> list[str]:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    return ["--", sys.executable, "launcher.py"]


def test_a_rank_that_is_killed_on_the_way(launcher: list[str], tmp_path: Path) -> None:
    done = runs.run("exec", [*launcher, "killed"], tmp_path)
    assert done.exit_code == 94, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"], error["victims"]) == ("rank_died", [1], [0])
    assert "SIGKILL" in error["message"]


def test_ranks_that_need_no_torch(launcher: list[str], tmp_path: Path) -> None:
    done = runs.run("exec", [*launcher, "well"], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []

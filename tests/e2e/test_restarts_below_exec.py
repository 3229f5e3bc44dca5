"""A launcher below `exec` that starts a failed rank again, and has told it how often it will."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs

LAUNCHER = """
import os, subprocess, sys
most, status = int(sys.argv[1]), 1
for attempt in range(most + 1):
    told = {"RESTART_COUNT": attempt, "MAX_RESTARTS": most}
    environment = {f"TORCHELASTIC_{name}": str(value) for name, value in told.items()}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "FAILS": sys.argv[2]}
    told = {**os.environ, **environment}
    status = subprocess.run([sys.executable, "rank.py"], env=told).returncode
    if status == 0:
        break
sys.exit(status)
"""
RANK = """
import os
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(os.environ["FAILS"]):
    raise RuntimeError("the instance is going away")
"""


def _run(tmp_path: Path, most: int, fails: int) -> runs.Run:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    command = ["--", sys.executable, "launcher.py", str(most), str(fails)]
    return runs.run("exec", command, tmp_path)


def test_a_failure_that_a_restart_helps_is_a_warning(tmp_path: Path) -> None:
    done = _run(tmp_path, 1, 1)
    assert done.exit_code == 0, done.explain()
    assert done.errors == []
    assert done.warnings == ["rank_exception"]


@pytest.mark.parametrize(("most", "fails"), [(0, 1), (1, 2)], ids=["never", "not again"])
def test_the_last_attempts_failure_is_the_verdict(tmp_path: Path, most: int, fails: int) -> None:
    done = _run(tmp_path, most, fails)
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [0])

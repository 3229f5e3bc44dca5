"""distcore on a torch whose private names are others than those it was written against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import runs

PROGRAM = Path(__file__).with_name("on_another_torch.py")


def test_groups_are_made_and_used_without_any_one_private_name() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=runs.environment({"PYTHONPATH": str(PROGRAM.parents[3])}),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 12, done.stdout
    assert all(line.endswith(" ok") for line in lines), done.stdout

"""Modules of the user's that are called as ours, or as what ours need, change nothing, and neither
does distdebug for them. `tests/installed` has all ways of installing it, and more of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import namesakes, plugin_sessions, runs


def test_a_planted_bug(tmp_path: Path) -> None:
    """With the supervisor in the modules' folder, which is on its PYTHONPATH, too."""
    namesakes.write(tmp_path)
    flags = ["-n", "2", namesakes.PROGRAM, "mismatch"]
    done = runs.run("run", flags, tmp_path, {"PYTHONPATH": str(tmp_path)})
    namesakes.check(done, "mismatch")


def test_pytest(tmp_path: Path) -> None:
    namesakes.write(tmp_path)
    environment = plugin_sessions.environment()
    del environment["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=runs.LIMIT_S,
        check=False,
    )
    assert (done.returncode, "1 failed, 2 passed" in done.stdout) == (1, True), done.stdout
    assert "MISMATCH  ranks disagree at collective #0" in done.stdout
    namesakes.check_output(done.stdout)

"""A run goes on where a standard stream is closed, or the working directory is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs

SCRIPT = 'import sys; print("out"); print("err", file=sys.stderr)\n'


def below_a_shell(shell: str, tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`distdebug` as a shell starts it, on one rank without torch."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    own = [str(runs.DISTDEBUG), "exec", "--allow-unwatched", *flags, "--"]
    words = ["env", "RANK=0", sys.executable, str(script)]
    return subprocess.run(
        ["sh", "-c", shell, "sh", *own, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={**runs.environment(), "TMPDIR": str(tmp_path)},
    )


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [("<&-", True, True), (">&-", False, True), ("2>&-", True, False), (">&- 2>&-", False, False)],
)
def test_closed_streams(closed: str, out: bool, err: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = below_a_shell(f'exec "$@" {closed}', tmp_path, "--run-dir", str(run))
    assert done.returncode == 0, done
    assert ("[rank 0] out\n" in done.stdout) == out
    assert ("[rank 0] err\n" in done.stderr) == err
    report = json.loads((run / "report.json").read_text())
    assert (report["outcome"], report["off"]) == ("ok", [])
    text = (run / "run.json").read_text()
    assert json.loads(text)["schema"], "nothing was written into our own files"


def test_a_removed_working_directory(tmp_path: Path) -> None:
    shell = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    done = below_a_shell(shell, tmp_path)
    assert done.returncode == 0, done
    assert done.stdout == "[rank 0] out\n"
    assert "[rank 0] err\n" in done.stderr
    assert "sitecustomize" not in done.stderr
    (found,) = tmp_path.glob("distdebug-*/2*/report.json")
    assert json.loads(found.read_text())["outcome"] == "ok"

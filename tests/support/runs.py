"""Runs `distdebug` as a user would, and reads what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DISTDEBUG = Path(sys.executable).with_name("distdebug")
LIMIT_S = 240.0
"""Against waiting for ever. Beside twenty other programs a command of which three processes import
torch takes two minutes."""
# What a program says to remove its own run directory, at one stroke: the supervisor and other
# ranks make files in it all the time, and `rmtree` alone fails where one comes between.
REMOVE_RUN_DIRECTORY = """
import os, shutil
os.rename(os.environ["DISTDEBUG_RUN_DIR"], os.environ["DISTDEBUG_RUN_DIR"] + "-gone")
shutil.rmtree(os.environ["DISTDEBUG_RUN_DIR"] + "-gone", ignore_errors=True)
"""


@dataclass(frozen=True)
class Run:
    """A finished `distdebug run` or `exec`."""

    exit_code: int
    stdout: str
    stderr: str
    directory: Path

    @property
    def report(self) -> dict[str, Any]:
        path = self.directory / "report.json"
        assert path.exists(), f"there is no report\n{self.explain()}"
        return json.loads(path.read_text())

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [one for one in self.report["findings"] if one["severity"] == "error"]

    @property
    def warnings(self) -> list[str]:
        return [one["kind"] for one in self.report["findings"] if one["severity"] == "warning"]

    def explain(self) -> str:
        """For the message of a failed assertion."""
        return f"exit code {self.exit_code}\n{self.stderr[-6000:]}"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tests' environment without what an outer run or terminal put there."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DISTDEBUG_", "TORCH_DISTRIBUTED_DEBUG", "PET_"))
    }
    # A fault of the layer itself must fail the test, not be survived in silence.
    return {**kept, "DISTDEBUG_RAISE_OWN_FAULTS": "1", **(extra or {})}


def start(
    command: str,
    arguments: Sequence[str],
    directory: Path,
    cwd: Path,
    extra: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start `distdebug <command> --run-dir <directory> <arguments>` in a session of its own."""
    return subprocess.Popen(
        [str(DISTDEBUG), command, "--run-dir", str(directory), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(extra),
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], directory: Path, limit_s: float = LIMIT_S) -> Run:
    """Wait for it; after `limit_s` it is interrupted, so that its report shows where it hung."""
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        raise AssertionError(
            f"distdebug did not end within {limit_s} s\n{stderr[-6000:]}"
        ) from None
    return Run(process.returncode, stdout, stderr, directory)


def run(
    command: str,
    arguments: Sequence[str],
    tmp_path: Path,
    extra: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> Run:
    """Run to the end, with the run directory below `tmp_path`."""
    directory = tmp_path / "run"
    return finish(start(command, arguments, directory, tmp_path, extra), directory, limit_s)


def reported(directory: Path) -> dict[str, Any]:
    """What `distdebug report --json` says of a run directory."""
    done = subprocess.run(
        [str(DISTDEBUG), "report", "--json", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)

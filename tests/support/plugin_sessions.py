"""Runs pytest with the plugin on a project of its own, in a process, as a user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import runs

PROJECTS = Path(__file__).parents[1] / "plugin" / "projects"
ROOT = Path(__file__).parents[2]
LIMIT_S = 500.0
_HEADLINE = re.compile(r"^_{3,} (?:ERROR at \w+ of )?(\S+) _{3,}$")


@dataclass(frozen=True)
class Session:
    """A finished pytest. `outcomes` are junit's, by test: passed, failed, error, skipped."""

    exit_code: int
    output: str
    outcomes: Mapping[str, str]
    seconds: Mapping[str, float]
    junit: str

    def failure(self, test: str) -> str:
        """What is printed about the failure of this test."""
        found: list[str] = []
        inside = False
        for line in self.output.splitlines():
            headline = _HEADLINE.match(line)
            if headline or line.startswith("==="):
                inside = headline is not None and headline[1].rpartition(".")[2] == test
            elif inside:
                found.append(line)
        assert found, f"nothing is printed about {test}\n{self.output[-6000:]}"
        return "\n".join(found)


def write(folder: Path, project: str, name: str = "test_it.py", conftest: str = "") -> None:
    """Make the project's folder: one of `projects`, or the text of a module."""
    text = (PROJECTS / project).read_text() if project.endswith(".py") else project
    (folder / name).write_text(text)
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")


def command(folder: Path, *arguments: str) -> list[str]:
    """pytest with the plugin; its own temporary folders are below `folder`."""
    return [
        *(sys.executable, "-m", "pytest", "-p", "distdebug.testing.plugin"),
        *(f"--basetemp={folder / 'tmp'}", f"--junitxml={folder / 'junit.xml'}"),
        *arguments,
    ]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of the tests, from which the plugin is importable; a fault of the layer is no secret."""
    found = runs.environment({"PYTHONPATH": str(ROOT), "COLUMNS": "110", **(extra or {})})
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "CI", "BUILD_NUMBER"):
        found.pop(name, None)
    return found


def run(
    folder: Path, *arguments: str, extra: Mapping[str, str] | None = None, stdin: str | None = None
) -> Session:
    """Run it to its end."""
    done = subprocess.run(
        command(folder, *arguments),
        cwd=folder,
        env=environment(extra),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return finished(folder, done.returncode, done.stdout)


def finished(folder: Path, exit_code: int, output: str) -> Session:
    """What the session came to."""
    path = folder / "junit.xml"
    junit = path.read_text() if path.exists() else ""
    outcomes, seconds = {}, {}
    for case in ElementTree.fromstring(junit).iter("testcase") if junit else ():
        kinds = [one.tag for one in case if one.tag in ("failure", "error", "skipped")]
        name = case.get("name", "")
        outcomes[name] = {"failure": "failed"}.get(kinds[0], kinds[0]) if kinds else "passed"
        seconds[name] = float(case.get("time", "0"))
    return Session(exit_code, output, outcomes, seconds, junit)


def processes(word: str) -> list[int]:
    """Live processes with this word on their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(name))
    return found

"""What became of each test of a suite, in a file: nobody should count what is printed, for
"Ran N tests" has the skipped ones or not (Python 3.12.1), and ranks print between the lines. A line
is written as its test ends, so that a suite that is cut still says what it had come to."""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "TEST_OUTCOMES"
"""The variable with the file's path: a line for each test."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
STOCK, INFO, DETAIL, TCP, MPI = MODES = ("stock", "INFO", "DETAIL", "tcp", "mpi")
"""What a suite is run on: torch with its gloo; below the layer; on distcore's backends."""


@dataclass
class Outcome:
    """What came of one suite in one mode: by test, one of the three."""

    tests: dict[str, str] = field(default_factory=dict)
    why: str = ""
    """Why there is none, or why there are not all."""
    output: str = ""

    def those(self, result: str) -> set[str]:
        """The tests that ended so."""
        return {name for name, one in self.tests.items() if one == result}

    def __str__(self) -> str:
        if not self.tests and self.why:
            return self.why
        failed = len(self.those(FAILED))
        counted = f"{len(self.those(PASSED))}" + (f", {failed} failed" if failed else "")
        return f"{counted}; {self.why}" if self.why else counted


class WritesOutcomes(unittest.TestCase):
    """Of a class of tests the first base."""

    def run(self, result: Any = None) -> Any:
        before = _counts(result)
        done = super().run(result)
        after = _counts(result if result is not None else done)  # torch's own `run` returns nothing
        bad, skipped = (now > then for now, then in zip(after, before, strict=True))
        outcome = FAILED if bad else SKIPPED if skipped else PASSED
        write(self._testMethodName, outcome)
        return done


class WritesReports:
    """A plugin of pytest: writes what became of a test once its last phase is over."""

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test that failed in any phase has failed; one that is skipped in one is skipped."""
        outcome = self._phases.get(report.nodeid, PASSED)
        if report.failed or outcome == FAILED:
            outcome = FAILED
        elif report.skipped:
            outcome = SKIPPED
        self._phases[report.nodeid] = outcome
        if report.when == "teardown":
            write(report.nodeid, self._phases.pop(report.nodeid))

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported is a failure, not a suite without tests."""
        if report.failed:
            write(report.nodeid, FAILED)


def _counts(result: unittest.TestResult | None) -> tuple[int, int]:
    if result is None:
        return 0, 0
    bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    return bad, len(result.skipped)


def write(test: str, outcome: str) -> None:
    """Into the file that the environment names, if it names one."""
    path = os.environ.get(FILE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([test, outcome]) + "\n")


def read(path: Path) -> dict[str, str]:
    """By the test's name, what became of it; nothing where no test has ended."""
    if not path.exists():
        return {}
    return dict(json.loads(line) for line in path.read_text().splitlines())


def run_within(
    limit_s: float, command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path
) -> int | None:
    """The exit code of a suite that prints into `log`; None where it was not over within the limit.
    It and all ranks that it has left behind are ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
            process.wait()

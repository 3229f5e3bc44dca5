"""What became of each test of a unittest suite, in a file: nobody should count what is printed, for
"Ran N tests" has the skipped ones or not (Python 3.12.1), and ranks print between the lines."""

from __future__ import annotations

import json
import os
import unittest
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
    """Why there is none."""
    output: str = ""

    def those(self, result: str) -> set[str]:
        """The tests that ended so."""
        return {name for name, one in self.tests.items() if one == result}

    def __str__(self) -> str:
        if self.why:
            return self.why
        failed = len(self.those(FAILED))
        return f"{len(self.those(PASSED))}" + (f", {failed} failed" if failed else "")


class WritesOutcomes(unittest.TestCase):
    """Of a class of tests the first base."""

    def run(self, result: Any = None) -> Any:
        before = _counts(result)
        done = super().run(result)
        after = _counts(result if result is not None else done)  # torch's own `run` returns nothing
        bad, skipped = (now > then for now, then in zip(after, before, strict=True))
        outcome = FAILED if bad else SKIPPED if skipped else PASSED
        path = os.environ.get(FILE)
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps([self._testMethodName, outcome]) + "\n")
        return done


def _counts(result: unittest.TestResult | None) -> tuple[int, int]:
    if result is None:
        return 0, 0
    bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    return bad, len(result.skipped)


def read(path: Path) -> dict[str, str]:
    """By the test's name, what became of it."""
    return dict(json.loads(line) for line in path.read_text().splitlines())

"""What became of each test of a unittest suite, in a file: nobody should count what is printed, for
"Ran N tests" has the skipped ones or not (Python 3.12.1), and ranks print between the lines."""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path
from typing import Any

FILE = "TEST_OUTCOMES"
"""The variable with the file's path: a line for each test."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


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

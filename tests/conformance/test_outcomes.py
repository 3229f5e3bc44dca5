"""Tests are counted alike by every Python's unittest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conformance import outcomes

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import sys
import unittest
from tests.conformance.outcomes import WritesOutcomes

class ReturnsNothing(unittest.TestCase):
    def run(self, result=None):
        super().run(result)  # as torch's does

class Tests(WritesOutcomes, ReturnsNothing):
    def test_passes(self): sys.stderr.write("Ran 99 tests ... FAIL: test_passes")
    def test_fails(self): self.fail()
    def test_raises(self): 1 / 0
    @unittest.skip("by a decorator")
    def test_skipped(self): pass
    def test_skips_itself(self): self.skipTest("inside")
    @unittest.expectedFailure
    def test_fails_as_expected(self): self.fail()
    @unittest.expectedFailure
    def test_passes_unexpectedly(self): pass
    def test_a_part_fails(self):
        for part in range(2):
            with self.subTest(part=part):
                assert part

unittest.main()
"""


def test_each_outcome(tmp_path: Path) -> None:
    script, file = tmp_path / "suite.py", tmp_path / "outcomes"
    script.write_text(SUITE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), outcomes.FILE: str(file)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert outcomes.read(file) == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_raises": "failed",
        "test_skipped": "skipped",
        "test_skips_itself": "skipped",
        "test_fails_as_expected": "passed",
        "test_passes_unexpectedly": "failed",
        "test_a_part_fails": "failed",
    }

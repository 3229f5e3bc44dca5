"""A plugin of pytest (`-p tests.gpu.keep`) that appends a JSON line to the file GPU_CASES as each
test begins and ends, so that what is known of a session outlives it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

LONGEST_TEXT = 6000


def _append(line: dict[str, Any]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or "GPU_CASES" not in os.environ:
        return  # the controller is told of all its workers' tests
    with Path(os.environ["GPU_CASES"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _append({"case": nodeid, "result": "begun"})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    _append(
        {
            "case": report.nodeid,
            "result": report.outcome,
            "seconds": round(report.duration, 1),
            "text": report.longreprtext[-LONGEST_TEXT:],
        }
    )

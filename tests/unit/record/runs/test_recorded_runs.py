"""Old runs go where that is asked for, and only those of which nothing is to be known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from distdebug.record.runs import recorded_runs
from distdebug.record.runs.recorded_runs import kept_small, list_runs
from distdebug.record.runs.run_directory import SCHEMA


def made(base: Path, second: int, outcome: str, findings: int = 0) -> Path:
    """A run that has ended; none without an outcome."""
    run = base / f"20260310-1415{second:02}-7f3a"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"schema": SCHEMA}))
    if outcome:
        report = {"outcome": outcome, "findings": [{}] * findings}
        (run / "report.json").write_text(json.dumps(report))
    return run


def test_only_finished_runs_without_findings_go(tmp_path: Path) -> None:
    base = tmp_path / ".distdebug"
    latest = made(base, 0, "ok")
    gone = [made(base, 1, "ok"), made(base, 2, "ok")]
    kept = [
        made(base, 3, "deadlock", 1),
        made(base, 4, "ok", 1),  # a warning
        made(base, 5, ""),
        made(base, 6, "interrupted"),
        made(base, 7, "ok"),  # the newest
    ]
    os.symlink(latest.name, base / "latest")
    assert kept_small(base, None) == "", "nothing goes that nobody has asked for"
    assert kept_small(base, 1) == "removed 2 runs without findings (--keep-runs 1)"
    assert not any(one.exists() for one in gone)
    assert sorted(entry.path for entry in list_runs(base)) == [latest, *kept]
    assert kept_small(base, 1) == ""


def test_much_is_said_and_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / ".distdebug"
    for second in range(12):
        made(base, second, "ok")
    monkeypatch.setattr(recorded_runs, "size_bytes", lambda _path: 1 << 28)
    assert kept_small(base, None) == (
        ".distdebug/ takes 3.0 GiB; `distdebug runs --prune 10` would remove 2 runs of 0.5 GiB"
    )
    monkeypatch.setattr(recorded_runs, "size_bytes", lambda _path: 1 << 20)
    assert kept_small(base, None) == ""
    assert len(list_runs(base)) == 12

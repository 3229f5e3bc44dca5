"""`distdebug bench replicas`: its figures, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.benchmarks.bench_command import bench_command, refusal


@pytest.mark.long
def test_each_way_to_train_is_measured(tmp_path: Path) -> None:
    """Makes some hundred steps by DDP, FSDP2 and tensor parallel."""
    from distdebug.benchmarks.checked_training import KINDS, WAYS  # and all of FSDP

    done = bench_command(tmp_path, "replicas", "--budget", "1", "--json", "figures.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["bars_percent"] == {"every_tenth": 3.0, "every": 15.0, "values": 5.0}
    assert [row["kind"] for row in found["rows"]] == list(KINDS)
    for row in found["rows"]:
        assert row["cpu_us"].keys() == WAYS.keys()
        assert row["percent"].keys() == WAYS.keys() - {"stock"}
        assert f"{row['kind']}: " in done.stdout


def test_refusals() -> None:
    assert "--budget 0 is not between" in refusal("replicas", "--budget", "0")
    assert "is not a directory" in refusal("replicas", "--json", "nowhere/figures.json")

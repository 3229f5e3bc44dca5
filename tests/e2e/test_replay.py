"""`distdebug replay`: the recorded calls of a run are made again, and end as they ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import recorded
from tests.support.replays import replayed
from tests.support.zygote import Zygote

SCRIPTS = Path(__file__).resolve().parents[2] / "fixtures" / "scripts"


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_a_finished_training_moves_the_same_bytes(
    backend: str, tmp_path: Path, zygote: Zygote
) -> None:
    run = recorded.unpack("finished", tmp_path / "recorded")
    done = replayed(zygote, run.path, tmp_path / "replay", backend)
    assert done.run.exit_code == 0, done.run.explain()
    assert done.run.report["findings"] == []
    assert sum(one.size_bytes for one in done.recorded.values()) > 0
    assert done.counts(done.replayed) == done.counts(done.recorded)
    assert done.plan.notes == []


@pytest.mark.parametrize("name", ["mismatch", "deadlock", "p2p"])
def test_what_was_found_is_found_again_at_the_same_lines(
    name: str, tmp_path: Path, zygote: Zygote
) -> None:
    run = recorded.unpack(name, tmp_path / "recorded")
    done = replayed(zygote, run.path, tmp_path / "replay")
    import json

    before = json.loads((run.path / "report.json").read_text())
    (error,) = done.run.errors
    first = before["findings"][0]
    assert (error["kind"], error["culprits"]) == (first["kind"], first["culprits"]), (
        done.run.explain()
    )
    assert done.run.exit_code == before["exit_code"]
    for rank, evidence in error["ranks"].items():
        assert evidence["call"] == first["ranks"][rank]["call"]
        assert evidence["location"]["line"] == first["ranks"][rank]["location"]["line"]

"""The checks of data in whole runs: silent on correct programs of every kind, and sampled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import runs

SCRIPTS = Path(__file__).resolve().parents[2] / "fixtures" / "scripts"
EVERYTHING = ["--check", "all", "--debug-level", "DETAIL"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        ("correct/ddp_join_uneven.py", 3),  # ranks make different numbers of steps
        pytest.param("correct/local_sync_groups.py", 4, marks=pytest.mark.long),
        pytest.param("correct/batched_exchange.py", 3, marks=pytest.mark.long),
        pytest.param("real/fsdp2_transformer.py", 2, marks=pytest.mark.long),  # shards
        pytest.param("real/pipeline.py", 4, marks=pytest.mark.long),  # stages of equal shapes
    ],
)
def test_silent_on_correct_programs(script: str, ranks: int, tmp_path: Path) -> None:
    done = runs.run("run", [*EVERYTHING, "-n", str(ranks), str(SCRIPTS / script)], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()


@pytest.mark.long
def test_a_sample_of_the_steps(tmp_path: Path) -> None:
    """The bit flips at step 5; of the 12 steps a third is looked at."""
    script = SCRIPTS / "buggy" / "divergence_bit_flip.py"
    arguments = ["--check", "replicas", "--check-every", "3", "-n", "3", str(script)]
    done = runs.run("run", arguments, tmp_path)
    (found,) = done.errors
    assert (found["kind"], found["culprits"]) == ("divergence", [1]), done.explain()
    step = re.search(r"after optimizer step (\d+)", found["message"])
    assert step is not None
    assert 5 <= int(step[1]) <= 12


def test_an_interval_that_is_none(tmp_path: Path) -> None:
    done = runs.finish(
        runs.start("run", ["--check-every", "0", "x.py"], tmp_path / "run", tmp_path), tmp_path
    )
    assert done.exit_code == 2
    assert "must be a number of steps from 1 on, not '0'" in done.stderr

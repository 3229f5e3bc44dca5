"""`distdebug.install()` in a program that distdebug did not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ranks, runs
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "library.py"


@pytest.mark.parametrize("when", ["early", "late"])
def test_install(when: str, tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT, when, observed=False)
    assert run.run() == 0, run.explain()
    first, second = (
        line for line in run.stdout.splitlines() if not line.startswith("Detected mismatch")
    )  # at DETAIL torch's own words follow ours
    assert first == second
    if when == "early":
        assert "shape_mismatch: ranks disagree at collective #1" in first, run.explain()
    else:
        assert "before torch.distributed.init_process_group()" in first
    assert not list(tmp_path.glob("distdebug-*")), "the records were to go with the processes"


@pytest.mark.parametrize(
    ("way", "outcome", "code"), [("clean", "ok", 0), ("wrong", "shape_mismatch", 91)]
)
def test_report_of_its_run(
    way: str, outcome: str, code: int, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """A run that nobody supervised is reported by what its records say."""
    kept = tmp_path / "kept"
    # Apart, for a launcher ends those that are late with the first that fails.
    run = ranks.forked(
        torch_loaded, tmp_path, 2, SCRIPT, way, str(kept), observed=False, apart=True
    )
    assert run.run() == 0, run.explain()
    report = runs.reported(kept)
    assert (report["outcome"], report["exit_code"]) == (outcome, code), report
    assert [rank["exit"]["code"] for rank in report["ranks"].values()] == [code and 1] * 2


def test_importing_it_costs_nothing() -> None:
    program = "import distdebug, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

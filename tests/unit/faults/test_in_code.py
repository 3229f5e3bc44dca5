"""`distdebug.faults` in code, and the command by the names of its modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import distdebug
from distdebug import faults

ROOT = Path(__file__).resolve().parents[3]


def test_a_program_reads_faults() -> None:
    fault = distdebug.faults.parse("kill(rank=1) @ all_reduce#5")
    assert (fault.action, fault.ranks, fault.moment.first) == ("kill", (1,), 5)
    assert fault.moment.when is faults.When.OP
    with pytest.raises(faults.SpecError, match="did you mean kill"):
        faults.parse("kil(rank=1)")


def test_a_program_draws_faults_and_reads_a_file(tmp_path: Path) -> None:
    assert faults.draw(3, 7, 2) == faults.draw(3, 7, 2)
    plan = tmp_path / "plan.toml"
    plan.write_text('seed = 3\n[[fault]]\nspec = "exit(rank=0)"\n')
    (fault,), seed = faults.read_file(plan)
    assert (fault.action, seed) == ("exit", 3)


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(getattr(faults, name) is not None for name in faults.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = faults.nothing


def test_nothing_of_it_is_loaded_before_it_is_used() -> None:
    code = "import distdebug, sys; print(*(m for m in sys.modules if m.startswith('distdebug')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["distdebug"], done.stderr


@pytest.mark.parametrize("module", ["distdebug", "distdebug.cli"])
def test_the_module_is_the_command(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "run", "--inject", "kil(rank=1)", __file__],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean kill?" in done.stderr

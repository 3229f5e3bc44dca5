"""`debugger.install()` in a program that distdebug did not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ranks

SCRIPT = Path(__file__).parent / "scripts" / "library.py"


@pytest.mark.parametrize("when", ["early", "late"])
def test_install(when: str, tmp_path: Path) -> None:
    run = ranks.torchrun(tmp_path, 2, SCRIPT, when, observed=False)
    assert run.run() == 0, run.explain()
    first, second = run.stdout.splitlines()
    assert first == second
    if when == "early":
        assert "shape_mismatch: ranks disagree at collective #1" in first, run.explain()
    else:
        assert "before torch.distributed.init_process_group()" in first
    assert not list(tmp_path.glob("distdebug-*")), "the records were to go with the processes"


def test_importing_it_costs_nothing() -> None:
    program = "import debugger, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

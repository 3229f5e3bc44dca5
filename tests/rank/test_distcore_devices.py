"""distcore's tcp backend with tensors of the CPU and of a GPU, which are staged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs

SCRIPT = Path(__file__).parent / "scripts" / "distcore_devices.py"
SIZE = 2


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_tensors_of_a_device(device: str, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(SIZE), str(tmp_path / "store"), device],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=runs.environment({"OMP_NUM_THREADS": "1"}),
        )
        for rank in range(SIZE)
    ]
    try:
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for output in outputs:
        assert output.endswith("all right\n"), output[-3000:]

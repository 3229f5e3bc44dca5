"""A process is a rank when it makes a group: what a rank starts for itself is none, although it
inherits RANK. Two that make a group as one rank are found: see the matrix of faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import os, subprocess, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

def work():
    # Each rank has one that is there before the group, and as long as it.
    if os.environ["RANK"] == "0":
        helper = subprocess.Popen(
            [sys.executable, "-c", "import torch.distributed; print('up', flush=True); input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert helper.stdout.readline() == "up\\n"
    else:
        early = iter(DataLoader(range(2), num_workers=1, multiprocessing_context="spawn"))
        next(early)
    dist.init_process_group("gloo")
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
    for batch in DataLoader(range(8), batch_size=4, **spawned if dist.get_rank() else {}):
        dist.all_reduce(batch)
    dist.barrier()
    if os.environ["RANK"] == "0":
        helper.communicate("\\n")
        assert helper.returncode == 0
    else:
        next(early)
    dist.destroy_process_group()

if __name__ == "__main__":
    work()
"""


@pytest.mark.parametrize("level", ["INFO", pytest.param("DETAIL", marks=pytest.mark.long)])
def test_workers_of_a_rank_are_no_ranks(level: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    flags = ["--debug-level", level, "--hang-timeout", "60"]
    run = zygote.run(2, [str(script)], tmp_path, flags)
    assert run.exit_code == 0, run.explain()
    assert run.report["findings"] == []
    assert sorted(run.report["ranks"]) == ["0", "1"]
    assert {rank["calls"] for rank in run.report["ranks"].values()} == {3}

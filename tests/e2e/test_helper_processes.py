"""A process is a rank when it makes a group: what a rank starts for itself is none, although it
inherits RANK. Two that make a group as one rank are found: the fixture join_duplicate_rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs

PROGRAM = """
import os, subprocess, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

def work(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # One that is there before the group, and as long as it.
    helper = subprocess.Popen(
        [sys.executable, "-c", "import torch.distributed, sys; print('up', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert helper.stdout.readline() == "up\\n"
    early = iter(DataLoader(range(2), num_workers=1, multiprocessing_context="spawn"))
    next(early)
    dist.init_process_group("gloo")
    for batch in DataLoader(range(8), batch_size=4, num_workers=1,
                            multiprocessing_context="spawn"):
        dist.all_reduce(batch)
    next(early)
    dist.barrier()
    helper.communicate("\\n")
    assert helper.returncode == 0
    dist.destroy_process_group()

if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "1"  # that both ranks are clients of
    mp.spawn(work, (store.port,), nprocs=2)
"""


@pytest.mark.parametrize("level", ["INFO", pytest.param("DETAIL", marks=pytest.mark.long)])
def test_workers_of_a_rank_are_no_ranks(level: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    arguments = ["--debug-level", level, "--hang-timeout", "60", "--", sys.executable, str(script)]
    run = runs.run("exec", arguments, tmp_path)
    assert run.exit_code == 0, run.explain()
    assert run.report["findings"] == []
    assert sorted(run.report["ranks"]) == ["0", "1"]
    assert {rank["calls"] for rank in run.report["ranks"].values()} == {3}

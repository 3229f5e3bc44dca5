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


APART = """
import multiprocessing, os, sys
import torch, torch.distributed as dist

def helper(rank, path, up, go):
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))
    up.set()
    go.wait()
    dist.all_reduce(torch.ones(2))

if __name__ == "__main__":
    rank, forks = int(os.environ["RANK"]), multiprocessing.get_context("fork")
    up, go = forks.Event(), forks.Event()
    saves = forks.Process(target=helper, args=(rank, sys.argv[1], up, go), daemon=True)
    saves.start()
    dist.init_process_group("gloo")
    up.wait()
    dist.barrier()
    if sys.argv[2] == "early":
        if rank == 0:
            go.set()
            saves.join()
        else:
            saves.terminate()
            saves.join()
            assert saves.exitcode == -15
    dist.destroy_process_group()
"""


@pytest.fixture(name="apart")
def _apart(tmp_path: Path) -> list[str]:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    return [str(script), str(tmp_path / "store")]


def test_a_rank_ends_its_helper_which_is_a_rank_of_another_world(
    apart: list[str], tmp_path: Path, zygote: Zygote
) -> None:
    """As those of torch's that save checkpoints, which multiprocessing ends by SIGTERM."""
    run = zygote.run(2, [*apart, "late"], tmp_path)
    assert run.exit_code == 0, run.explain()
    assert run.report["findings"] == []


def test_a_rank_ends_its_helper_for_which_another_waits(
    apart: list[str], tmp_path: Path, zygote: Zygote
) -> None:
    run = zygote.run(2, [*apart, "early"], tmp_path)
    assert run.exit_code == 94, run.explain()
    (error,) = run.errors
    assert (error["kind"], error["culprits"]) == ("rank_died", [1])
    assert error["data"]["signal"] == 15

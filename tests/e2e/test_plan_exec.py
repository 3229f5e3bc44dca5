"""`distdebug plan exec`: what a launcher would start, and a script that starts its ranks itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import planned, runs
from tests.support.torch_loaded import TorchLoaded

RANK = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
assert os.environ["LOCAL_WORLD_SIZE"] == "2"
values = torch.ones(4)
if dist.get_rank() == 1:
    dist.broadcast(values, 0)
else:
    dist.all_reduce(values)
"""
STARTS = """
import os, sys
from multiprocessing import get_context
import torch
from torch.distributed import all_reduce, broadcast, init_process_group

STATE = []

def worker(queue, wrong):
    assert STATE == ([1] if sys.argv[1] == "fork" else []), STATE
    rank = int(os.environ["RANK"])
    init_process_group("gloo", init_method="tcp://127.0.0.1:29999", rank=rank, world_size=3)
    values = torch.ones(4)
    all_reduce(values)
    if rank == wrong:
        broadcast(values, 0)
    else:
        all_reduce(values)
    queue.put(rank)

if __name__ == "__main__":
    STATE.append(1)
    context = get_context(sys.argv[1])
    queue = context.Queue()
    started = []
    for rank in range(3):
        os.environ["RANK"] = str(rank)
        started.append(context.Process(target=worker, args=(queue, int(sys.argv[2]))))
        started[-1].start()
    assert sorted(queue.get() for _ in started) == [0, 1, 2]
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0, 0]
    print("all have ended")
"""
SPAWNS = """
import sys
import torch.distributed as dist
import torch.multiprocessing as mp

def worker(rank, offset):
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29999", rank=(rank + offset) % 2, world_size=2
    )
    dist.barrier()

if __name__ == "__main__":
    mp.spawn(worker, (int(sys.argv[1]),), nprocs=2)
"""


def plan(
    tmp_path: Path,
    loaded: TorchLoaded | None,
    source: str,
    *words: str,
    command: tuple[str, ...] = ("exec", "--", "python"),
) -> runs.Run:
    """`loaded`: where it is forked; else it is a command."""
    script = tmp_path / "train.py"
    script.write_text(source)
    arguments = [*command, str(script), *words]
    if loaded is None:
        return runs.run("plan", arguments, tmp_path)
    return planned.plan(loaded, arguments, tmp_path)


def test_what_torchrun_would_start_is_planned(tmp_path: Path) -> None:
    torchrun = ("exec", "--", "torchrun", "--nnodes", "2", "--nproc-per-node", "2")
    done = plan(tmp_path, None, RANK, command=torchrun)
    assert done.exit_code == 91, done.stderr
    assert "train.py:7 in <module>   <- look here" in done.stderr
    assert "planned 4 ranks" in done.stderr


def test_processes_that_a_script_forks_are_planned_ranks(tmp_path: Path) -> None:
    done = plan(tmp_path, None, STARTS, "fork", "-1")
    assert done.exit_code == 0, done.stderr
    assert "OK  3 ranks, 2 calls each" in done.stderr
    assert (tmp_path / "run" / "launcher.out").read_text() == "all have ended\n"


def test_a_wrong_call_of_a_spawned_rank_is_found(tmp_path: Path) -> None:
    done = plan(tmp_path, None, STARTS, "spawn", "1")
    assert done.exit_code == 91, done.stderr
    assert "rank  1     broadcast(src=0, float32[4])   train.py:16 in worker" in done.stderr


@pytest.mark.parametrize(
    ("command", "offset", "sentence"),
    [
        (("exec", "--", "python"), "1", "process N to be rank N of all"),
        (("-n", "2"), "0", "a planned rank starts ranks itself"),
    ],
)
def test_what_cannot_be_planned_is_told_and_starts_nothing(
    tmp_path: Path,
    command: tuple[str, ...],
    offset: str,
    sentence: str,
    torch_loaded: TorchLoaded,
) -> None:
    # What is forked has no script as its main program, which it could start anew.
    loaded = None if command[0] == "exec" else torch_loaded
    done = plan(tmp_path, loaded, SPAWNS, offset, command=command)
    assert done.exit_code == 2, done.stderr
    assert sentence in done.stderr

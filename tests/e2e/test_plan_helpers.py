"""Processes that planned ranks fork: the line to who runs the plan is their parent's alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded
from tests.unit.supervisor.process_tools import alive, pids_in

LOADER = """
import sys, time
import torch, torch.distributed as dist


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        time.sleep(0.02 * number)  # as the disk does
        return torch.tensor([number])


dist.init_process_group("gloo")
rank = dist.get_rank()
sampler = torch.utils.data.DistributedSampler(Images(), 2, rank)
loader = torch.utils.data.DataLoader(Images(), batch_size=2, num_workers=2, sampler=sampler)
for batch in loader:
    dist.all_reduce(batch)
    if sys.argv[1] == "wrong" and rank == 1:
        break
"""
LEFT = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if not os.fork():
    time.sleep(600)
    os._exit(0)
dist.all_reduce(torch.tensor([1]))
os._exit(0)
"""
DAEMON = """
import os, subprocess
import torch, torch.distributed as dist
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
daemon = "echo $$ >>daemons; exec sleep 600"
subprocess.Popen(["sh", "-c", daemon], start_new_session=True, **quiet)
subprocess.run(["sh", "-c", f"setsid sh -c '{daemon}' &"], **quiet)  # an orphan at once
dist.init_process_group("gloo")
dist.all_reduce(torch.tensor([1]))
while open("daemons").read().count("\\n") < 2:
    os.sched_yield()
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_workers_of_a_data_loader_sleep_by_themselves(
    tmp_path: Path, mode: str, torch_loaded: TorchLoaded
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    done = plan(torch_loaded, ["-n", "2", str(script), mode], tmp_path)
    found = [(one["kind"], one["culprits"]) for one in done.report["findings"]]
    wanted = [] if mode == "right" else [("early_exit", [1])]
    assert (found, done.exit_code) == (wanted, 93 if wanted else 0), done.explain()


def test_a_child_that_a_rank_leaves_behind_keeps_nobody_waiting(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEFT)
    began_s = time.monotonic()
    done = plan(torch_loaded, ["-n", "2", str(script)], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert time.monotonic() - began_s < 250


def test_a_plan_leaves_no_daemon(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DAEMON)
    done = runs.run("plan", ["-n", "1", str(script)], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    # Which are killed, and reaped, before the command ends.
    assert not [pid for pid in pids_in(tmp_path / "daemons", 2) if alive(pid)]

"""What a command leaves behind, or never shows, does not make a run green."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import runs
from tests.support.zygote import Zygote

LEAVES = """
import os, subprocess, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    left = subprocess.Popen(["sleep", "300"], start_new_session=sys.argv[1] == "daemon", **quiet)
    with open("left", "w") as file:
        file.write(str(left.pid))
odd = dist.get_rank() == 1 and sys.argv[2] == "odd"
dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
dist.destroy_process_group()
"""
SPAWNS = """
import os, subprocess, sys
code = '''
import os, torch, torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
dist.barrier()
dist.destroy_process_group()
'''
how = sys.argv[1]
flags = [how] if how.startswith("-") else []
subprocess.run([sys.executable, *flags, "-c", code], check=True, env={} if how == "env" else None)
"""


@pytest.mark.parametrize(("how", "lives"), [("daemon", True), ("child", False)])
def test_an_error_is_an_error_whatever_is_left_behind(
    how: str, lives: bool, tmp_path: Path, zygote: Zygote
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES)
    done = zygote.run(2, [str(script), how, "odd"], tmp_path, ["--on-finding", "report"])
    left = int((tmp_path / "left").read_text())
    assert psutil.pid_exists(left) == lives, "a daemon lives on, as it does under torchrun"
    if lives:
        os.kill(left, 9)
    assert done.exit_code == 91, done.explain()
    (error,) = done.errors
    assert error["kind"] == "reduce_op_mismatch"
    assert error["culprits"] == [0, 1]


def test_a_correct_program_may_leave_a_daemon(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES)
    done = zygote.run(2, [str(script), "daemon", "even"], tmp_path)
    os.kill(int((tmp_path / "left").read_text()), 9)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []


@pytest.mark.parametrize(("how", "words"), [("-I", "Python's -I"), ("env", "environment of its")])
def test_a_run_in_which_nothing_was_observed_is_not_green(
    how: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWNS)
    done = runs.run("exec", ["--", sys.executable, str(script), how], tmp_path)
    assert done.exit_code == 2, done.explain()
    assert done.report["outcome"] == "unwatched"
    (note,) = done.report["notes"]
    assert "could not be reached" in note
    assert words in note


def test_a_run_that_need_not_be_observed_may_pass(tmp_path: Path) -> None:
    done = runs.run("exec", ["--allow-unwatched", "--", "true"], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["outcome"] == "ok"


def test_whom_the_hook_reaches_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWNS)
    done = runs.run("exec", ["--", sys.executable, str(script), "plain"], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["world_size"] == 1


HALF = """
import subprocess, sys
code = '''
import sys, torch, torch.distributed as dist
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
dist.barrier()
dist.destroy_process_group()
'''
flags = [[], sys.argv[2:]]
ranks = [
    subprocess.Popen([sys.executable, *flags[rank], "-c", code, str(rank), sys.argv[1]])
    for rank in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.long
@pytest.mark.parametrize("flags", [["-I"], []])
def test_a_rank_that_was_not_seen_beside_one_that_was(flags: list[str], tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(HALF)
    program = [sys.executable, str(script), str(tmp_path / "store"), *flags]
    done = runs.run("exec", ["--", *program], tmp_path)
    assert done.exit_code == 0, done.explain()
    notes = done.report["notes"]
    if not flags:
        assert notes == []
        return
    (note,) = notes
    assert note.startswith("rank 1 was not seen: process ")
    assert "Python's -I" in note

"""Errors of a rank that reach the top within others: wrapped by a trainer, or in a group."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

class TrainingError(Exception):
    pass

def step(how):
    if dist.get_rank() == 1 and how != "well":
        if how == "bad batch":
            raise KeyError("labels")  # line 13
        time.sleep(60)  # line 14
    dist.all_reduce(torch.ones(4))

def wrapped(how):
    try:
        step(how)
    except Exception as error:
        if how == "bad batch":
            raise TrainingError("step 4 failed") from error
        raise TrainingError("step 4 failed") from None

def grouped(how):
    try:
        step(how)
    except Exception as error:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [error]) from None

dist.init_process_group("gloo")
dist.barrier()
if sys.argv[2] == "late":
    _set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
{"wrapped": wrapped, "grouped": grouped}[sys.argv[1]](sys.argv[2])
dist.destroy_process_group()
"""
NEEDS_GROUPS = pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is of 3.11")
HOW = [pytest.param("grouped", marks=NEEDS_GROUPS), "wrapped"]


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    return str(script)


@pytest.mark.parametrize("how", HOW)
def test_who_ran_out_of_time_is_a_victim(
    how: str, program: str, tmp_path: Path, zygote: Zygote
) -> None:
    done = zygote.run(3, [program, how, "late"], tmp_path)
    assert done.exit_code == 93, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("missing_rank", [1])
    assert error["ranks"]["1"]["location"]["line"] == 14


@pytest.mark.parametrize("how", HOW)
def test_what_it_came_of_is_told(how: str, program: str, tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run(2, [program, how, "bad batch"], tmp_path)
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [1])
    line, text = error["ranks"]["1"]["location"]["line"], error["message"]
    if how == "grouped":
        assert line == 13
        assert "raised KeyError: 'labels' (in ExceptionGroup) at train.py:13 in step" in text
    else:
        assert "TrainingError: step 4 failed, caused by KeyError: 'labels' at train.py:13" in text


@pytest.mark.parametrize("how", HOW)
def test_where_nothing_is_raised(how: str, program: str, tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run(2, [program, how, "well"], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []


CHECKPOINT = """
import sys, threading
import torch, torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([1, 2])
state = {"weight": torch.ones(3), f"of {rank}": threading.Lock() if rank == int(sys.argv[2]) else 4}
if rank in (1, 2):
    checkpoint.save(state, checkpoint_id=sys.argv[1], process_group=group)  # line 10
dist.barrier()
"""


@pytest.mark.parametrize("fails", [1, 2, -1])
def test_a_checkpoint_that_fails_in_one_rank(fails: int, tmp_path: Path, zygote: Zygote) -> None:
    """All ranks of the checkpoint raise then; the other ones only say whose error it was."""
    script = tmp_path / "train.py"
    script.write_text(CHECKPOINT)
    done = zygote.run(3, [str(script), str(tmp_path / "saved"), str(fails)], tmp_path)
    if fails < 0:
        assert (done.exit_code, done.errors) == (0, []), done.explain()
        return
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [fails])
    assert error["ranks"][str(fails)]["location"]["line"] == 10
    assert "caused by TypeError: cannot pickle '_thread.lock' object" in error["message"]

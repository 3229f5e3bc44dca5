"""The wall clock is set in the middle of a run: nobody is late for it, nothing is told late."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import forked_program, runs

CLOCK = """
import os, time

def stepped(real, seconds):
    def now():
        with open(os.environ["STEPPED_CLOCK"]) as file:
            return real() + int(file.read()) * seconds
    return now

time.time, time.time_ns = stepped(time.time, 1), stepped(time.time_ns, 10**9)
"""
"""Loaded at the start of every Python process; the monotonic clock stays as it is."""
PROGRAM = '''
import contextlib, json, os, signal, sys, time
import torch, torch.distributed as dist
samples = os.path.join(os.environ["DISTDEBUG_RUN_DIR"], "host.jsonl")
def sampled_s():
    """When the supervisor has last looked at the ranks, by its clock."""
    while True:
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(samples) as file:
                return json.loads(file.read().splitlines()[-1])["time_ns"] / 1e9
        time.sleep(0.01)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1:
    step, dies = sys.argv[1:]
    before_s = sampled_s()
    with open("clock.new", "w") as file:
        file.write(step)
    os.replace("clock.new", "clock")
    while abs(sampled_s() - before_s) < 60:
        time.sleep(0.01)
    if dies == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
'''


def stepped(tmp_path: Path, step: str, dies: str) -> runs.Run:
    """Two ranks; rank 1 sets the clock while rank 0 waits for it."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "clock").write_text("+0")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK)
    extra = {
        "PYTHONPATH": str(tmp_path / "site"),
        "STEPPED_CLOCK": str(tmp_path / "clock"),
    }
    program = [sys.executable, forked_program.__file__, "2", "train.py", step, dies]
    return runs.run("exec", ["--hang-timeout", "60", "--", *program], tmp_path, extra)


def noted_span_s(tmp_path: Path) -> float:
    """By the wall clock: from the start of the run to its last sample."""
    samples = (tmp_path / "run" / "host.jsonl").read_text().splitlines()
    began_ns = json.loads((tmp_path / "run" / "run.json").read_text())["started_ns"]
    return (json.loads(samples[-1])["time_ns"] - began_ns) / 1e9


@pytest.mark.parametrize("step", ["+120", pytest.param("-120", marks=pytest.mark.long)])
def test_a_step_is_no_lateness(step: str, tmp_path: Path) -> None:
    done = stepped(tmp_path, step, "lives")
    assert abs(noted_span_s(tmp_path)) > 60, "the supervisor has seen the step"
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []
    assert done.report["duration_s"] < 60


@pytest.mark.parametrize("step", [pytest.param("+120", marks=pytest.mark.long), "-120"])
def test_a_death_after_a_step_is_told_at_once(step: str, tmp_path: Path) -> None:
    done = stepped(tmp_path, step, "dies")
    assert done.exit_code == 94, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_died", [1])
    assert done.report["ranks"]["1"]["exit"] == {"code": None, "signal": 9}
    assert error["detected_after_s"] < 20
    assert done.report["duration_s"] < 60

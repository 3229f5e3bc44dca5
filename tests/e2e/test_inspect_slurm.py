"""`distdebug inspect --slurm` on a job of a real Slurm, in which there is nothing of distdebug."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.nodes import Command, Nodes, Unavailable
from tests.support.on_nodes import PORT
from tests.support.slurm import Slurm

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(400)]
LIMIT_S = 200.0
MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": str(PORT)}
PROGRAM = """
import os, sys, time
os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(100_000):
    if sys.argv[1:] == ["late"] and rank == 2 and step == 3:
        time.sleep(600)  # <- here
    time.sleep(0.05)
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step == 2:
        print("step", flush=True)
"""
LINE = next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if "<- here" in line)


@pytest.fixture
def slurm(make_nodes: Callable[[int], Nodes]) -> Slurm:
    try:
        return Slurm(make_nodes(2))
    except Unavailable as reason:
        pytest.skip(f"needs Slurm: {reason}")


def started(slurm: Slurm, tmp_path: Path, *arguments: str) -> tuple[Command, str]:
    """The job on two nodes, two ranks each, when it has begun; and its number."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    words = ["srun", "-N2", "-n4", "--ntasks-per-node=2", sys.executable, str(script), *arguments]
    command = slurm.start(words, MASTER)
    until_s = time.monotonic() + LIMIT_S
    while "step" not in command.said():
        assert command.poll() is None, f"it ended\n{command.said()}\n{slurm.said()}"
        assert time.monotonic() < until_s, f"no calls\n{command.said()}"
        time.sleep(0.1)
    (job,) = slurm.jobs()
    return command, str(job)


def look(slurm: Slurm, job: str) -> dict[str, Any]:
    """What a login node, of which the job has nothing, is told."""
    asked = [str(runs.DISTDEBUG), "inspect", "--slurm", job, "--json"]
    command = slurm.start(asked)
    status = command.wait(LIMIT_S)
    said = command.said()
    assert status == 0, f"{said}\n{slurm.said()}"
    found: dict[str, Any] = json.loads(said[said.index("{") :])
    return found


def test_a_rank_of_another_node_is_late(slurm: Slurm, tmp_path: Path) -> None:
    command, job = started(slurm, tmp_path, "late")
    until_s = time.monotonic() + LIMIT_S
    while not (report := look(slurm, job))["findings"]:
        assert time.monotonic() < until_s, report
    (finding,) = report["findings"]
    assert (finding["kind"], finding["culprits"]) == ("missing_rank", [2]), report
    assert finding["ranks"]["2"]["location"]["line"] == LINE
    hosts = {rank: one["host"] for rank, one in report["ranks"].items()}
    assert hosts == {"0": "node0", "1": "node0", "2": "node1", "3": "node1"}
    assert command.poll() is None
    slurm.ask("scancel", job)
    command.wait(LIMIT_S)


def test_a_job_at_work(slurm: Slurm, tmp_path: Path) -> None:
    command, job = started(slurm, tmp_path)
    for _ in range(2):
        report = look(slurm, job)
        assert (report["findings"], report["outcome"]) == ([], "running"), report
        assert sorted(report["ranks"]) == ["0", "1", "2", "3"]
    assert command.poll() is None
    slurm.ask("scancel", job)
    command.wait(LIMIT_S)

"""Ranks that a program forks, which has imported torch itself, as notebook launchers do: the layer
has come with their parent's import, and each of them is a rank of its own all the same."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from distdebug.record.requests.breakpoints import stops
from tests.ranks.debugger.test_breakpoints import attach
from tests.support import runs

LAUNCHER = """
import os, sys
import torch, torch.distributed as dist
from torch import nn


def train(rank, rate):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def main(rank):
    store = dist.FileStore(sys.argv[2], 3)
    dist.init_process_group("gloo", rank=rank, world_size=3, store=store)
    if sys.argv[1] == "stops" and rank == 1:
        breakpoint()
    train(rank, 0.3 if sys.argv[1] == "apart" and rank == 1 else 0.1)
    dist.destroy_process_group()


alone = nn.Linear(4, 4)
parents = torch.optim.SGD(alone.parameters(), lr=0.1)
alone(torch.ones(2, 4)).sum().backward()
parents.step()
children = []
for rank in range(3):
    if not (child := os.fork()):
        parents.step()  # not yet a rank
        main(rank)
        sys.exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(any(codes))
"""


def program(tmp_path: Path, mode: str) -> list[str]:
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    words = [sys.executable, str(script), mode, str(tmp_path / "store")]
    return ["--check", "replicas", "--", *words]


def test_their_replicas_are_compared(tmp_path: Path) -> None:
    found = runs.run("exec", program(tmp_path, "apart"), tmp_path)
    assert found.exit_code == 95, found.explain()
    (error,) = found.errors
    assert (error["kind"], error["culprits"]) == ("divergence", [1])
    assert error["quantity"] == "hyperparameter"


def test_they_stop_at_breakpoints_and_equal_replicas_are_no_finding(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    process = runs.start("exec", program(tmp_path, "stops"), directory, tmp_path)
    until = time.monotonic() + runs.LIMIT_S
    while not any(stop.rank == 1 for stop in stops(directory)):
        assert process.poll() is None, runs.finish(process, directory).explain()
        assert time.monotonic() < until
        time.sleep(0.05)
    with attach(tmp_path, directory, 1) as terminal:
        terminal.expect(r"\(rank 1\) $")
        terminal.type("p rank")
        terminal.expect(r"1\n\(rank 1\) $")
        terminal.type("c")
        assert terminal.finish() == 0
    found = runs.finish(process, directory)
    assert (found.exit_code, found.errors) == (0, []), found.explain()


WAITS = """
import os, signal, sys
import torch, torch.distributed as dist


def main(rank):
    store = dist.FileStore(sys.argv[1], 3)
    dist.init_process_group("gloo", rank=rank, world_size=3, store=store)
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


children = []
for rank in range(3):
    if not (child := os.fork()):
        main(rank)
        sys.exit(0)
    children.append(child)
first, _ = os.wait()
for child in children:
    if child != first:
        os.kill(child, signal.SIGTERM)
os.wait3(0)
os.wait4(-1, options=0)
sys.exit(1)
"""


def test_their_parent_may_wait_for_any_of_them(tmp_path: Path) -> None:
    """Nobody else is told how they ended, and the others end because of the first."""
    script = tmp_path / "launcher.py"
    script.write_text(WAITS)
    command = ["--", sys.executable, str(script), str(tmp_path / "store")]
    found = runs.run("exec", command, tmp_path)
    assert found.exit_code == 94, found.explain()
    (error,) = found.errors
    assert (error["kind"], error["culprits"]) == ("rank_died", [1])
    ends = [rank["exit"] for rank in found.report["ranks"].values()]
    assert all(end["code"] is not None or end["signal"] is not None for end in ends), ends

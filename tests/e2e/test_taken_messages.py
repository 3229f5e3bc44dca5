"""A receive from any source takes the message that a later one waits for: that rank waits for ever,
as soon as its sender can send no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import mpi
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes
from tests.support.on_nodes import Layout
from tests.support.zygote import Zygote

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
backend, way, count, taken = sys.argv[1:]
dist.init_process_group(backend)
rank, tensor = dist.get_rank(), torch.zeros(4)
pair = dist.new_group([0, 2, 1])
dist.barrier()
if rank == 0:
    if way == "early":
        early = dist.irecv(tensor, group=pair)
    else:
        dist.recv(tensor, group=pair)
    if way == "early":
        dist.recv(torch.zeros(2), src=1, tag=1)
    open(taken, "w").close()
    dist.recv(torch.zeros(4), src=1, group=pair)
    if way == "early":
        early.wait()
    dist.recv(torch.zeros(4), group=pair)
elif rank == 1:
    dist.send(tensor, 0, group=pair)
    if way == "early":
        dist.send(torch.zeros(2), 0, tag=1)
    if count == "two":
        dist.send(tensor, 0, group=pair)
else:
    while not os.path.exists(taken):
        time.sleep(0.05)
    dist.send(tensor, 0, group=pair)
dist.barrier()
dist.destroy_process_group()
"""
RUNS = [
    ("gloo", "first"),
    ("gloo", "early"),
    ("tcp", "early"),
    pytest.param("tcp", "first", marks=pytest.mark.long),
    ("mpi", "early"),
    pytest.param("mpi", "first", marks=pytest.mark.long),
]


@pytest.mark.parametrize("count", ["one", "two"])
@pytest.mark.parametrize(("backend", "way"), RUNS)
def test_a_message_that_was_taken(
    backend: str, way: str, count: str, tmp_path: Path, zygote: Zygote
) -> None:
    if backend == "mpi":
        mpi.python("openmpi")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    words = [str(script), backend, way, count, str(tmp_path / "taken")]
    run = zygote.run(3, words, tmp_path, ["--hang-timeout", "60"], mpiexec=backend == "mpi")
    if count == "two":
        assert run.exit_code == 0, run.explain()
        assert run.errors == []
        return
    assert run.exit_code == 92, run.explain()
    (error,) = run.errors
    assert (error["kind"], error["culprits"], error["proven"]) == ("deadlock", [0, 1], True)


@pytest.mark.root
@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_the_head_of_several_nodes_knows_what_was_taken(
    backend: str, tmp_path: Path, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    words = [str(script), backend, "early", "one", str(tmp_path / "taken")]
    flags = ["--hang-timeout", "60"]
    for run in forked_nodes.run(make_nodes(2), Layout((2, 1)), words, flags):
        assert run.exit_code == 92, run.explain()
        (error,) = run.errors
        assert (error["kind"], error["culprits"], error["proven"]) == ("deadlock", [0, 1], True)

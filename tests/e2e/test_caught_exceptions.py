"""A rank that has caught what left a call goes on, and a later finding about it tells of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def fail(what):
    if what == "object":
        dist.broadcast_object_list([lambda: None], src=rank)  # object
    elif what == "forward":
        model(torch.ones(1, 3))  # forward
    elif what == "backward":
        torch.ones(1).backward()  # backward
    elif what == "step":
        optimizer.step(lambda: {}["loss"])  # step

what, who = sys.argv[1:]
for _ in range(3):
    if who == "all" or rank == 1:
        try:
            fail(what)
        except Exception:
            pass
if who == "one" and rank == 1:
    dist.barrier()
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""
KINDS = {
    "object": ("AttributeError", "broadcast_object_list"),
    "forward": ("RuntimeError", "DistributedDataParallel.forward"),
    "backward": ("RuntimeError", "backward"),
    "step": ("KeyError", "SGD.step"),
}


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    return str(script)


@pytest.mark.parametrize("what", KINDS)
def test_a_later_finding_tells_of_it(
    what: str, program: str, tmp_path: Path, zygote: Zygote
) -> None:
    done = zygote.run(3, [program, what, "one"], tmp_path)
    assert done.exit_code == 91, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("op_mismatch", [1])
    type_, function = KINDS[what]
    line = next(n for n, row in enumerate(PROGRAM.splitlines(), 1) if row.endswith(f"# {what}"))
    told = f"rank 1 raised {type_} in {function} at train.py:{line} in fail before this, and went"
    assert [row.startswith(told) for row in error["details"]].count(True) == 1, error["details"]


def test_alone_it_is_no_finding(program: str, tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run(2, [program, "forward", "all"], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()

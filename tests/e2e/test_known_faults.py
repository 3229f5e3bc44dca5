"""A wrong number that torch itself makes is told as such, by a run in which it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch, torch.distributed as dist
import torch.distributed.nn.functional as functional

members = [int(rank) for rank in sys.argv[1]]
dist.init_process_group("gloo")
group = dist.new_group(members)
if dist.get_rank() in members:
    weights = torch.ones(3, requires_grad=True)
    functional.broadcast(weights, src=members[0], group=group).sum().backward()
    if dist.get_rank() == members[0]:
        assert weights.grad.sum() == 6 + int(sys.argv[2]), weights.grad
dist.barrier()
dist.destroy_process_group()
"""
CITED = "pytorch#130515"
IS_MENDED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


@pytest.mark.parametrize(
    ("members", "more", "cited"),
    [
        pytest.param("12", "0", True, marks=pytest.mark.skipif(IS_MENDED, reason="torch has it")),
        ("02", "1", False),  # its root has one number in the group and in the world: another error
    ],
)
def test_the_gradient_of_a_broadcast_in_a_sub_group(
    members: str, more: str, cited: bool, tmp_path: Path, zygote: Zygote
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = zygote.run(3, ["train.py", members, more], tmp_path)
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [int(members[0])])
    assert any(CITED in line for line in error["details"]) is cited, done.explain()

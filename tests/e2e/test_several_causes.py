"""What the ranks have refused, or what is wrong with data, explains no disagreement of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

REPORT = ["--on-finding", "report"]
STEPS = """
import sys
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
for wrong in sys.argv[2]:
    try:
        dist.all_reduce(torch.ones(4 if str(rank) == wrong else 6))
    except RuntimeError:
        assert wrong != "-"
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("steps", "wrong"), [("-1--0-", [1, 4]), ("-11-", [1]), ("--1-", [2]), ("----", [])]
)
def test_two_ranks_that_refuse_a_call_and_go_on(
    steps: str, wrong: list[int], tmp_path: Path, zygote: Zygote
) -> None:
    """Neither is singled out, so that both are culprits of each; what tells the two apart is that
    they have agreed in between."""
    (tmp_path / "train.py").write_text(STEPS)
    flags = ["--debug-level", "DETAIL", *REPORT]
    done = zygote.run(2, ["train.py", "gloo", steps], tmp_path, flags)
    assert done.exit_code == (91 if wrong else 0), done.explain()
    assert [(one["culprits"], one["seq"]) for one in done.errors] == [
        ([0, 1], seq) for seq in wrong
    ], done.explain()


MESSAGE = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("tcp")
rank, last = dist.get_rank(), dist.get_world_size() - 1
message, wrong = int(sys.argv[1]), sys.argv[2] == "wrong"
try:
    if rank == 0:
        dist.send(torch.ones(message), 1)
    if rank == 1:
        dist.recv(torch.empty(6), 0)
except RuntimeError:
    assert message != 6
for step in range(3):
    dist.all_reduce(torch.ones(6))
try:
    dist.all_reduce(torch.ones(4 if wrong and rank == last else 6))
except RuntimeError:
    assert wrong
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("message", [4, 6])
@pytest.mark.parametrize("last", ["wrong", "right"])
def test_a_message_that_tcp_refuses(
    size: int, message: int, last: str, tmp_path: Path, zygote: Zygote
) -> None:
    (tmp_path / "train.py").write_text(MESSAGE)
    done = zygote.run(size, ["train.py", str(message), last], tmp_path, REPORT)
    found = [(one["kind"], one["culprits"]) for one in done.errors]
    collective = ("shape_mismatch", [2] if size == 3 else [0, 1])
    assert found == [("p2p_mismatch", [0, 1])] * (message != 6) + [collective] * (
        last == "wrong"
    ), done.explain()


NAN = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value, wrong = float(sys.argv[1]), sys.argv[2]
dist.all_reduce(torch.full((6,), value if rank == 1 else 1.0))
for step in range(3):
    dist.all_reduce(torch.ones(6))
dist.all_reduce(torch.ones(6), op=dist.ReduceOp.MAX if str(rank) == wrong else dist.ReduceOp.SUM)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("value", "last"), [("nan", "2"), ("1", "2"), ("nan", "-"), ("1", "-")])
def test_a_disagreement_after_a_nan(value: str, last: str, tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "train.py").write_text(NAN)
    flags = ["--check", "nan", *REPORT]
    done = zygote.run(3, ["train.py", value, last], tmp_path, flags)
    found = [(one["kind"], one["culprits"]) for one in done.errors]
    assert found == [("nan", [1])] * (value == "nan") + [("reduce_op_mismatch", [2])] * (
        last == "2"
    ), done.explain()

"""`--on-finding report`: what the checks of data find ends no rank, and is reported once."""

from __future__ import annotations

from pathlib import Path

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gradient = torch.ones(4)
for step in range(6):
    if step == 2 and rank == 1 and "right" not in sys.argv:
        gradient[0] = float("nan")
    dist.all_reduce(gradient)
    gradient /= 2
    dist.broadcast(gradient, src=0)  # which has it from rank 1
dist.destroy_process_group()
print("to the end")
"""
FLAGS = ["--on-finding", "report", "--check", "nan,overflow"]


def test_a_nan(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = zygote.run(2, [str(script)], tmp_path, FLAGS)
    assert done.exit_code == 95, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["culprits"], found["seq"]) == ("nan", [1], 4)
    assert found["ranks"]["1"]["location"]["line"] == 12
    assert done.stdout.count("to the end") == 2
    assert [rank["exit"]["code"] for rank in done.report["ranks"].values()] == [0, 0]


def test_its_twin(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = zygote.run(2, [str(script), "right"], tmp_path, FLAGS)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()

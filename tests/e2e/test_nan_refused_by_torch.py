"""What torch itself refuses for a NaN (TORCH_DIST_NAN_CHECK, from 2.15 on) is a `nan` of that rank
and line; a program that catches it goes on as it does without us."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.zygote import Zygote

pytestmark = pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "NanCheckHook"), reason="this torch does not look for NaNs"
)
ASKED = {"TORCH_DIST_NAN_CHECK": "1"}

CALLS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weights = torch.ones(4)
dist.all_reduce(weights)
if dist.get_rank() == 1:
    weights[2] = float("nan")
dist.all_reduce(weights)  # <- here
"""
TRAINS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
batch = torch.ones(3, 4)
if dist.get_rank() == 1:
    batch[1, 2] = float("nan")
model(batch).sum().backward()  # <- here
"""
CATCHES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weights = torch.ones(4)
if dist.get_rank() == 1:
    weights[2] = float("nan")
try:
    dist.all_reduce(weights)
except RuntimeError as error:
    assert str(error) == "NaN found in input tensor.", error
    dist.all_reduce(weights.nan_to_num_())
print(weights.tolist())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("program", [CALLS, TRAINS], ids=["calls", "trains"])
def test_nobody_catches_it(program: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(program)
    done = zygote.run(2, [str(script)], tmp_path, extra=ASKED)
    assert done.exit_code == 95, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["culprits"], found["victims"]) == ("nan", [1], [0])
    assert found["message"].startswith("rank 1 contributes nan to all_reduce(sum, float32[")
    line = program.splitlines().index(next(x for x in program.splitlines() if "<- here" in x)) + 1
    assert found["ranks"]["1"]["location"]["line"] == line, found
    assert "RuntimeError: NaN found in input tensor." in done.stderr  # torch's own traceback


def test_the_program_catches_it(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(CATCHES)
    done = zygote.run(2, [str(script)], tmp_path, extra=ASKED)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    assert done.stdout.count("[2.0, 2.0, 1.0, 2.0]") == 2

"""`--check nan-origin`: the report says in which module and operation a NaN was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x / torch.sqrt(x.var(-1, keepdim=True) - lowered)

lowered = 0.0
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), Norm(), nn.Linear(4, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    lowered = 100.0 if (step, rank, sys.argv[1]) == (2, 1, "forward") else 0.0
    result = model(torch.randn(8, 4))
    if (step, rank, sys.argv[1]) == (2, 1, "loss"):
        result = torch.sqrt(result - result.detach()) * 0.0
    optimizer.zero_grad()
    result.mean().backward()
    optimizer.step()
print(net[0].weight.sum().item())
dist.destroy_process_group()
"""
SAID = {
    "forward": "`1` (Norm) was the first that returned it, by sqrt at train.py:9 in forward; batch "
    "3: float32[8, 4] from ",
    "loss": "what `Sequential` returned was sound, and its gradient was not: the loss that was "
    "made of it; batch 3: float32[8, 4] from ",
}


@pytest.mark.parametrize("where", SAID)
def test_where_it_was_made(where: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = zygote.run(2, [str(script), where], tmp_path, ["--check", "nan-origin"])
    assert done.exit_code == 95, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["culprits"]) == ("nan", [1])
    assert found["data"]["origin"].startswith(SAID[where]), found["data"]
    assert found["details"][0] == f"origin: {found['data']['origin']}"


def test_what_is_sound_is_computed_as_without_it(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    runs = []
    for name, flags in {"looks": ["--check", "nan-origin"], "plain": []}.items():
        (tmp_path / name).mkdir()
        runs.append(zygote.run(2, [str(script), "nowhere"], tmp_path / name, flags))
    assert [one.exit_code for one in runs] == [0, 0], runs[0].explain()
    assert runs[0].report["findings"] == []
    numbers = [
        sorted(line for line in one.stdout.splitlines() if line[-1:].isdigit()) for one in runs
    ]
    assert numbers[0] == numbers[1]

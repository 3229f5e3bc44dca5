"""What each wrapper pairs by position is compared: ranks that disagree, and ranks that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

wrapper, how = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

class Heads(nn.ModuleDict):
    def forward(self, x):
        return {name: head(x) for name, head in self.items()}

def model(odd):
    names = ["b", "a"] if odd and how == "order" else ["a", "b"]
    made = Heads({name: nn.Linear(4, 4, bias=False) for name in names})
    if how == "frozen":
        made["b" if odd else "a"].weight.requires_grad_(False)
    return made

made = model(rank == 1 and how != "alike")
if wrapper == "ddp":
    DistributedDataParallel(made)  # here
elif wrapper == "fsdp1":
    FullyShardedDataParallel(made, device_id=torch.device("cpu"))  # here
else:
    fully_shard(made, mesh=init_device_mesh("cpu", (3,)))  # here
dist.barrier()
dist.destroy_process_group()
"""
NAMES = {"ddp": "DistributedDataParallel", "fsdp1": "FullyShardedDataParallel"}


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    return str(script)


@pytest.mark.parametrize(
    ("wrapper", "how", "told"),
    [
        ("ddp", "order", "rank 1 has b.weight where the others have a.weight, at #0 of 2"),
        (
            "ddp",
            "frozen",
            "1 has a.weight float32[4,4] where the others have a.weight float32[4,4] f",
        ),
        ("fsdp1", "order", "rank 1 has b.weight where the others have a.weight, at #0 of 2"),
        ("fsdp2", "order", "rank 1 has b.weight where the others have a.weight, at #0 of 2"),
    ],
)
def test_a_rank_that_has_them_otherwise(
    wrapper: str, how: str, told: str, program: str, tmp_path: Path, zygote: Zygote
) -> None:
    done = zygote.run(3, [program, wrapper, how], tmp_path)
    assert done.exit_code == 91, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"], error["proven"]) == ("group_mismatch", [1], True)
    assert f"what {NAMES.get(wrapper, 'fully_shard')} pairs by position: " in error["message"]
    assert told in error["message"], error["message"]
    lines = [n for n, row in enumerate(PROGRAM.splitlines(), 1) if row.endswith("# here")]
    assert error["ranks"]["1"]["location"]["line"] in lines
    assert error["data"]["parameters"].keys() == {"0", "1"}


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp1", "fsdp2"])
def test_ranks_that_have_them_alike(
    wrapper: str, program: str, tmp_path: Path, zygote: Zygote
) -> None:
    done = zygote.run(3, [program, wrapper, "alike"], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    assert done.report["off"] == []

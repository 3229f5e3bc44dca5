"""torch's fake backend: each process has a world of its own, in which others may have its rank."""

from __future__ import annotations

from pathlib import Path

from tests.support.zygote import Zygote

PROGRAM = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=64)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="file://STORE", rank=RANK, world_size=2)
dist.barrier()  # both are there as long as the other one is
dist.destroy_process_group()
"""


def test_two_processes_are_the_same_rank_of_fake_worlds(tmp_path: Path, zygote: Zygote) -> None:
    """That two are one rank of a world that they share is told of `join_duplicate_rank.py`."""
    script = tmp_path / "shapes.py"
    own = 'int(__import__("os").environ["RANK"])'
    script.write_text(PROGRAM.replace("STORE", str(tmp_path / "store")).replace("RANK,", f"{own},"))
    done = zygote.run(2, [str(script)], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []

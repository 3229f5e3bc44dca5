"""`distdebug plan --sizes`: a program at many sizes of its job."""

from __future__ import annotations

from pathlib import Path

from tests.support import planned
from tests.support.torch_loaded import TorchLoaded

TENSOR_PARALLEL = """\
import sys
import torch, torch.distributed as dist
tp = int(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
groups = [dist.new_group(list(range(at, at + tp))) for at in range(0, world, tp)]
mine = groups[rank // tp]
if tp > 2 and rank % tp == tp - 1:
    dist.barrier(mine)
else:
    dist.all_reduce(torch.ones(4), group=mine)
dist.destroy_process_group()
"""


def test_the_smallest_that_fails_is_told_in_full(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    script = tmp_path / "train.py"
    script.write_text(TENSOR_PARALLEL)
    words = ["--sizes", "dp=1..2,tp=2,3", str(script), "{tp}"]
    done = planned.plan(torch_loaded, words, tmp_path)
    assert done.exit_code == 91, done.stderr
    rows = done.stderr.splitlines()[:4]
    assert [row.split("  ")[0] for row in rows] == [
        "dp=1,tp=2 (2 ranks)",
        "dp=1,tp=3 (3 ranks)",
        "dp=2,tp=2 (4 ranks)",
        "dp=2,tp=3 (6 ranks)",
    ]
    assert ["MISMATCH" in row for row in rows] == [False, True, False, True]
    assert "rank  2     barrier()" in done.stderr  # of 3 ranks, and in full
    assert done.stderr.endswith(
        "the smallest size that fails is dp=1,tp=3 (3 ranks); "
        "it fails at 1 more of 4 sizes: dp=2,tp=3 (6 ranks)\n"
    )
    kept = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert kept == ["dp1-tp2", "dp1-tp3", "dp2-tp2", "dp2-tp3"]


def test_where_no_size_fails(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    script = tmp_path / "train.py"
    script.write_text(TENSOR_PARALLEL)
    done = planned.plan(torch_loaded, ["-n", "1..2", str(script), "1"], tmp_path)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.endswith("distdebug: all right at 2 sizes\n")

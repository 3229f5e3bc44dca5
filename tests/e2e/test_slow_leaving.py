"""A rank that ends one step early and takes its time for it, as one does that uploads its logs at
exit: it is the culprit, and not the rank that its backend has told of the end meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import mpi, runs
from tests.support.zygote import Zygote

SCRIPT = """
import atexit, sys, time
import torch, torch.distributed as dist, distcore
atexit.register(time.sleep, 3)
dist.init_process_group(sys.argv[1])
steps = int(sys.argv[2]) if dist.get_rank() == 1 else 6
for step in range(steps):
    dist.all_reduce(torch.ones(4))
"""


@pytest.mark.parametrize("steps", [5, 6])
@pytest.mark.parametrize("backend", [pytest.param("tcp", marks=pytest.mark.long), "mpi"])
def test_who_leaves(backend: str, steps: int, tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [str(tmp_path / "train.py"), backend, str(steps)]
    extra = {"PYTHONPATH": str(mpi.ROOT)}
    if backend == "mpi":
        done = zygote.run(2, words, tmp_path, extra=extra, mpiexec=True)
    else:
        done = runs.run("run", ["-n", "2", *words], tmp_path, extra=extra)
    if steps == 6:
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    assert done.report["outcome"] == "early_exit", done.explain()
    assert (done.exit_code, done.errors[0]["culprits"]) == (93, [1])

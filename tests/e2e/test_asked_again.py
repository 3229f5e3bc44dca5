"""A rank that waits for a call a little at a time and asks again waits since the first time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[2])
rank = dist.get_rank()
dist.barrier()
while rank == 1 and (sys.argv[1] == "never" or not os.path.exists("asked twice")):
    time.sleep(0.1)
total = torch.full((4,), rank + 1.0)
work = dist.all_reduce(total, async_op=True)
asked = 1
while True:
    try:
        work.wait(timedelta(milliseconds=200))
        break
    except (RuntimeError, TimeoutError) as error:
        if "distdebug" in str(error):
            raise
        asked += 1
        open("asked twice", "w").close()
assert total.tolist() == [3.0] * 4
assert work.wait()
assert rank == 1 or asked > 1
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    return str(script)


@pytest.mark.parametrize("backend", ["gloo", pytest.param("tcp", marks=pytest.mark.long)])
def test_the_other_never_comes(program: str, backend: str, tmp_path: Path, zygote: Zygote) -> None:
    flags = ["--hang-timeout", "5"]
    run = zygote.run(2, [program, "never", backend], tmp_path, flags)
    assert run.exit_code == 93, run.explain()
    (error,) = run.errors
    assert (error["kind"], error["culprits"], error["proven"]) == ("missing_rank", [1], False)
    assert error["ranks"]["0"]["state"].startswith("waits in"), error


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_it_comes_late(program: str, backend: str, tmp_path: Path, zygote: Zygote) -> None:
    run = zygote.run(2, [program, "late", backend], tmp_path)
    assert run.exit_code == 0, run.explain()
    assert run.errors == []

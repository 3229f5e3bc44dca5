"""A flight record that somebody cuts short while it is written: the training goes on, and so does
the supervisor, nobody is accused, and one sentence says what is lost."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.support.zygote import Zygote

LOOP = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
steps = after = 0
while after < 2000:
    done = torch.tensor([float(os.path.exists("cut"))])
    dist.all_reduce(done)
    steps += 1
    after += bool(done.item())
    if steps == 50:
        open(f"ready-{rank}", "w").close()
dist.new_group([0, 1])
dist.destroy_process_group()
print("trained", rank, flush=True)
"""
SENTENCE = "somebody has cut the flight record short"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="lost pages are kept on x86-64 alone")
@pytest.mark.parametrize("size", [0, 5000, None])
def test_the_training_goes_on(size: int | None, tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    flags = ["--hang-timeout", "4"]
    command = zygote.start(2, [str(tmp_path / "train.py")], tmp_path, flags)
    until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)), limit_s=200)
    if size is not None:
        os.truncate(command.directory / "ranks" / "1.flight", size)
    (tmp_path / "cut").touch()
    done = command.finish()
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    printed = done.stdout
    assert "trained 0" in printed
    assert "trained 1" in printed
    assert done.stderr.count(SENTENCE) <= 2, "told once as it is seen, and once in the report"
    off = [(row["part"], row["ranks"]) for row in done.report["off"]]
    assert off == ([] if size is None else [("flight record", [1])])


UNSEEN = """
import glob, os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    (record,) = glob.glob(os.path.join(os.environ["DISTDEBUG_RUN_DIR"], "ranks", "1.flight"))
    os.truncate(record, int(sys.argv[1]))
    time.sleep(7)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="lost pages are kept on x86-64 alone")
@pytest.mark.parametrize("size", [0, 5000])
def test_cut_before_anybody_has_read_it(size: int, tmp_path: Path, zygote: Zygote) -> None:
    """Nobody is accused of not having come, and the rank is not left out in silence."""
    (tmp_path / "train.py").write_text(UNSEEN)
    done = zygote.run(2, [str(tmp_path / "train.py"), str(size)], tmp_path, ["--hang-timeout", "4"])
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    off = [(row["part"], row["ranks"]) for row in done.report["off"]]
    assert off == [("flight record", [1])]
    assert "(rank 1)" in done.stderr

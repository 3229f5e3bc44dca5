"""A supervisor that gets no core for a while: what happens between two of its looks is found as it
is found by one that has looked all the time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
open(f"ready-{dist.get_rank()}", "w").close()
while not os.path.exists("go"):
    pass
if dist.get_rank() == 1:
    if sys.argv[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "fails":
        raise ValueError("a bad sample")
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
STANDS_STILL = """
import os, time
from distdebug.supervisor import watch
from distdebug.supervisor.command import launch

started, start, look = [], launch.Launch.start, watch.Watch.look

def remembered(self, *words, **named):
    started.append(self)
    return start(self, *words, **named)

def once(self, finished=False):
    ready = all(os.path.exists(f"ready-{rank}") for rank in (0, 1))
    found = look(self, finished)  # which sees what was so before it
    if ready and not os.path.exists("go"):
        open("go", "w").close()
        while started[0].descendants():
            time.sleep(0.01)
    return found

launch.Launch.start, watch.Watch.look = remembered, once
"""
"""From the look that sees both ranks at work until everything has ended."""


Start = Callable[[str], runs.Run]


@pytest.fixture(name="run")
def _run(tmp_path: Path, zygote: Zygote) -> Start:
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(how: str) -> runs.Run:
        program = ["train.py", how]
        return zygote.start(2, program, tmp_path, breaks=STANDS_STILL).finish()

    return run


@pytest.mark.parametrize(
    ("how", "kind", "code"),
    [("dies", "rank_died", 94), ("fails", "rank_exception", 1)],
)
def test_what_ended_the_run_meanwhile_is_named(run: Start, how: str, kind: str, code: int) -> None:
    done = run(how)
    assert (done.report["outcome"], done.exit_code) == (kind, code), done.explain()
    assert done.errors[0]["culprits"] == [1], done.explain()


def test_a_run_that_ended_well_meanwhile_is_a_success(run: Start) -> None:
    done = run("ends")
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    assert {rank["calls"] for rank in done.report["ranks"].values()} == {2}

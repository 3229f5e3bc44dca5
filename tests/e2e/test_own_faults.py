"""A fault of the supervisor costs the part that it is in: never the run, and not the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

FORGIVING = {"DISTDEBUG_RAISE_OWN_FAULTS": ""}  # as for users: here the supervisor must fail
BREAK = """
from distdebug.diagnosis import diagnose as verdict
from distdebug.supervisor import watch
from distdebug.supervisor.machine import host

def boom(*_arguments, **_named):
    raise KeyError("a record with \\x1b[31mnonsense in it")

{broken}
"""
A_RULE_AND_THE_SAMPLER = "verdict.departures = boom; host.HostSampler.sample = boom"
EVERY_LOOK = "watch.Watch.look = boom"
PROGRAM = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
odd = dist.get_rank() == 1 and sys.argv[1] == "odd"
dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
dist.destroy_process_group()
open(f"done-{sys.argv[2]}", "w").close()
"""


Broken = Callable[..., tuple[runs.Run, Path]]


@pytest.fixture(name="broken")
def _broken(tmp_path: Path, zygote: Zygote) -> Broken:
    def broken(how: str, *arguments: str) -> tuple[runs.Run, Path]:
        """A run of two ranks below a supervisor that is broken like that."""
        (tmp_path / "train.py").write_text(PROGRAM)
        flags = ["--on-finding", "report"]
        program = ["train.py", *arguments]
        breaks = BREAK.format(broken=how)
        done = zygote.start(2, program, tmp_path, flags, FORGIVING, breaks=breaks).finish()
        return done, done.directory

    return broken


def test_a_rule_that_raises_costs_only_itself(broken: Broken, tmp_path: Path) -> None:
    done, directory = broken(A_RULE_AND_THE_SAMPLER, "odd", "0")
    assert done.exit_code == 91, done.explain()
    (error,) = done.errors
    assert error["kind"] == "reduce_op_mismatch"
    assert error["culprits"] == [0, 1]
    off = {one["part"]: one["why"] for one in done.report["off"]}
    assert set(off) == {"rule boom", "the sampling of the host"}
    assert all("KeyError" in why and "\x1b" not in why for why in off.values())
    assert "off: rule boom" in done.stderr
    kept = (directory / "own-faults.txt").read_text()
    assert kept.count("Traceback (most recent call last)") == 2, "each once, with its traceback"
    assert (tmp_path / "done-0").exists()


def test_where_nothing_can_be_judged_the_program_runs_to_its_end(
    broken: Broken, tmp_path: Path
) -> None:
    done, _ = broken(EVERY_LOOK, "even", "0")
    assert (tmp_path / "done-0").exists(), "the program was not ended"
    assert done.exit_code == 96, done.explain()
    assert done.report["outcome"] == "tool_error"
    parts = [one["part"] for one in done.report["off"]]
    assert parts == ["the look at the ranks"]  # how they ended is seen, and not judged
    assert json.loads((tmp_path / "run" / "report.json").read_text())["findings"] == []


def test_a_sound_supervisor_has_nothing_to_tell_of_itself(broken: Broken) -> None:
    done, directory = broken("", "even", "0")
    assert done.exit_code == 0, done.explain()
    assert done.report["off"] == []
    assert not (directory / "own-faults.txt").exists()
    assert "off: " not in done.stderr

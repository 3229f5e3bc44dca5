"""`distdebug.inject()` and `distdebug.step()` in a program that distdebug did not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distdebug.faults import plan
from distdebug.faults.plan import Plan
from distdebug.faults.spec import parse
from tests.support import ranks, runs
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote

SCRIPT = Path(__file__).parents[1] / "scripts" / "injecting.py"


@pytest.mark.parametrize("way", ["faulty", "clean"])
def test_a_program_asks_for_faults(way: str, tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    kept = tmp_path / "kept"
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT, str(kept), way, observed=False)
    assert (run.run() == 0) == (way == "clean"), run.explain()
    report = runs.reported(kept)
    if way == "clean":
        assert (report["outcome"], report["exit_code"]) == ("ok", 0)
        assert report["injected"] == []
        assert plan.load(kept) is None
        return
    assert (report["outcome"], report["exit_code"]) == ("rank_exception", 1), report
    (error,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert error["culprits"] == [1]
    assert error["injected"] == 'raise(rank=1, "ValueError: on purpose") @ step 3'
    assert error["ranks"]["1"]["location"]["line"] == line_of("# the step")
    first, second = report["injected"]
    assert (first["fired"], first["rank"], first["where"]) == (True, 1, "step 3")
    assert (second["fired"], second["not_in"]) == (False, [0])
    assert second["why"] == "rank 0 made no barrier call"


def line_of(mark: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))


def test_ranks_that_ask_for_the_same_add_it_once(tmp_path: Path) -> None:
    asked = [parse("kill(rank=1)"), parse("kill(rank=0) @ call 7")]
    (tmp_path / plan.FILE).write_text(json.dumps(Plan((parse("skip(rank=1)"),), 5).to_json()))
    for _ in range(2):
        plan.add(tmp_path, asked)
    found = plan.load(tmp_path)
    assert found is not None
    assert found.seed == 5
    texts = [(fault.number, fault.text) for fault in found.faults]
    assert texts == [(0, "skip(rank=1)"), (1, "kill(rank=1)"), (2, "kill(rank=0) @ call 7")]
    assert (tmp_path / plan.FILE).stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {plan.FILE, plan.LOCK}


BELOW_DISTDEBUG = """
import sys
import distdebug
if "faulty" in sys.argv:  # before torch is there
    distdebug.faults.inject("exit(rank=1, code=7) @ all_reduce#2")
import torch
import torch.distributed as dist
if "faulty" in sys.argv:
    distdebug.inject("delay(rank=0, 1ms) @ all_reduce#1")
dist.init_process_group("gloo")
for _ in range(4):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("planned", [[], ["--inject", "delay(rank=1, 1ms) @ all_reduce#0"]])
def test_a_program_below_distdebug_asks_for_faults(
    tmp_path: Path, planned: list[str], zygote: Zygote
) -> None:
    (tmp_path / "train.py").write_text(BELOW_DISTDEBUG)
    run = zygote.run(2, ["train.py", "faulty"], tmp_path, planned)
    assert run.exit_code == 94, run.explain()
    (error,) = run.errors
    assert (error["kind"], error["culprits"]) == ("rank_died", [1])
    assert error["injected"] == "exit(rank=1, code=7) @ all_reduce#2"
    fired = {one["action"]: one["fired"] for one in run.report["injected"]}
    assert fired == {"exit": True, "delay": True}
    assert len(run.report["injected"]) == 2 + len(planned) // 2


def test_a_program_below_distdebug_that_asks_for_none_has_none(
    tmp_path: Path, zygote: Zygote
) -> None:
    (tmp_path / "train.py").write_text(BELOW_DISTDEBUG)
    run = zygote.run(2, ["train.py"], tmp_path)
    assert (run.exit_code, run.report["outcome"]) == (0, "ok"), run.explain()
    assert run.report["injected"] == []


def test_what_is_asked_for_in_vain_is_told(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    program = "import distdebug; distdebug.inject('kill(rank=0) @ call 0'); print('unharmed')"
    done = torch_loaded.python(program, tmp_path)
    assert (done.returncode, done.stdout) == (0, "unharmed\n")
    assert done.stderr == (
        "distdebug: NOT INJECTED: kill(rank=0) @ call 0: nothing observes this process; start it "
        "with `distdebug run`, or call distdebug.install() before init_process_group()\n"
    )

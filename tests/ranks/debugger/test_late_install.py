"""`distdebug inspect --install`: a job that runs gets the layer, and goes on as it would have."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support import foreign_jobs
from tests.support.runs import DISTDEBUG
from tests.support.waiting import until

SCRIPT = Path(__file__).parents[1] / "scripts" / "late_install.py"
RANKS = 3
LIMIT_S = 240.0

has_hooks = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_pre_hook"),
    reason=f"torch {torch.__version__} has no hooks around the calls of a group",
)
gdb_works = pytest.mark.usefixtures("working_gdb")


PLAIN = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, ended = dist.get_rank(), torch.zeros(1)
open(f"ready.{rank}", "w").close()
while not ended:
    time.sleep(0.01)
    ended.fill_(os.path.exists("go"))
    dist.all_reduce(ended, op=dist.ReduceOp.MIN)
sys.stdout.write(f"left {rank} {'_distdebug' in sys.modules}\\n")  # whole, unlike print's
"""
"""For what does not depend on what the ranks do: DistributedDataParallel takes 3 s to import."""


@contextmanager
def job(folder: Path, what: str, script: Path = SCRIPT) -> Iterator[subprocess.Popen[bytes]]:
    """A training at work."""
    words = foreign_jobs.mp_spawn(RANKS, [str(script), what])
    with foreign_jobs.job(words, folder) as running:
        wait_for(lambda: len(list(folder.glob("ready.*"))) == RANKS, folder)
        yield running


def wait_for(condition: Any, folder: Path) -> None:
    until(condition, (folder / "output").read_text, LIMIT_S)


def install(running: subprocess.Popen[bytes], folder: Path, within_s: float) -> Any:
    asked = [DISTDEBUG, "inspect", "--job", running.pid, "--run-dir", folder / "run"]
    asked += ["--install", within_s, "--json"]
    return subprocess.run(list(map(str, asked)), capture_output=True, text=True, check=False)


def report(folder: Path) -> dict[str, Any]:
    asked = [str(DISTDEBUG), "report", str(folder / "run"), "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def said(folder: Path, word: str) -> list[str]:
    rows = (folder / "output").read_text(errors="replace").splitlines()
    return sorted(row for row in rows if row.startswith(f"{word} "))


@has_hooks
@gdb_works
def test_a_late_mismatch_is_named_with_rank_call_and_line(tmp_path: Path) -> None:
    with job(tmp_path, "mismatch") as running:
        done = install(running, tmp_path, LIMIT_S)
        assert done.returncode == 0, done.stderr
        assert "the layer is in ranks 0,1,2; each was stopped for" in done.stderr
        assert "of which none contradicts another" in done.stderr
        assert json.loads(done.stdout)["findings"] == []
        (tmp_path / "go").touch()
        wait_for((tmp_path / "late").exists, tmp_path)
        wait_for(lambda: report(tmp_path)["findings"], tmp_path)
        found = report(tmp_path)
    errors = [one for one in found["findings"] if one["severity"] == "error"]
    assert [(one["kind"], one["culprits"], one["proven"]) for one in errors] == [
        ("shape_mismatch", [1], True)
    ], errors
    (finding,) = errors
    here = next(n for n, row in enumerate(SCRIPT.read_text().splitlines(), 1) if "<- here" in row)
    location = finding["ranks"]["1"]["location"]
    assert (Path(location["file"]).name, location["line"]) == (SCRIPT.name, here)
    assert finding["ranks"]["1"]["call"] == "all_gather_into_tensor(float32[5])"
    assert [one["part"] for one in found["off"]] == ["calls"]


@pytest.mark.long
@pytest.mark.timeout(900)
@has_hooks
@gdb_works
def test_a_right_program_goes_on_unharmed_and_silent(tmp_path: Path) -> None:
    alone, installed = tmp_path / "alone", tmp_path / "installed"
    for folder in (alone, installed):
        folder.mkdir()
        with job(folder, "right") as running:
            if folder is installed:
                done = install(running, folder, LIMIT_S)
                assert done.returncode == 0, done.stderr
                again = install(running, folder, LIMIT_S)
                assert again.returncode == 2
                assert "distdebug records it already" in again.stderr
            (folder / "go").touch()
            assert running.wait(LIMIT_S) == 0, (folder / "output").read_text()
    assert len(said(alone, "checksum")) == RANKS
    assert said(installed, "checksum") == said(alone, "checksum")
    found = report(installed)
    assert (found["outcome"], found["findings"]) == ("ok", []), found
    # All that followed, of DDP's reducer, too: 20 steps, and what is called by name.
    assert {one["calls"] > 20 for one in found["ranks"].values()} == {True}, found["ranks"]


@pytest.mark.long
@has_hooks
@gdb_works
def test_where_a_rank_does_not_come_no_rank_has_it(tmp_path: Path) -> None:
    with job(tmp_path, "sleeper") as running:
        done = install(running, tmp_path, 1.0)
        assert done.returncode == 2, done.stderr
        assert "the layer was not installed, and no rank has it" in done.stderr
        assert "has not come back to its interpreter within 1 s" in done.stderr
        assert not (tmp_path / "run").exists()
        (tmp_path / "go").touch()
        assert running.wait(LIMIT_S) == 0, (tmp_path / "output").read_text()
    assert len(said(tmp_path, "checksum")) == RANKS
    # Of the one that slept not even code: what was queued there has found itself unwanted.
    assert "left 1 False" in said(tmp_path, "left")


@pytest.mark.skipif(shutil.which("gdb") is None, reason="it takes gdb")
@pytest.mark.skipif(hasattr(dist.ProcessGroup, "register_pre_hook"), reason="this torch has hooks")
def test_an_older_torch_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    with job(tmp_path, "right", script) as running:
        done = install(running, tmp_path, 1.0)
        assert done.returncode == 2
        assert f"its torch is {torch.__version__}" in done.stderr
        assert not (tmp_path / "run").exists()
        (tmp_path / "go").touch()
        assert running.wait(LIMIT_S) == 0, (tmp_path / "output").read_text()
    assert said(tmp_path, "left") == [f"left {rank} False" for rank in range(RANKS)]

"""A rank that dies before it has a record: killed, it is named by what its parent knows; by an
exception, it says so itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs

LAUNCHER = """
import os, subprocess, sys
ranks = []
for rank in range(2):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, "rank.py", sys.argv[1]]
    ranks.append(subprocess.Popen(command, env=environment))
codes = [ranks[1].wait()]
if any(codes):
    ranks[0].terminate()
codes.append(ranks[0].wait())
sys.exit(int(any(codes)))
"""
RANK = """
import os, signal, sys, time
# As long as an import of torch takes: until the supervisor has been round, which samples in each
# round that begins a second after the last sample, and then looks who is there, twice as often.
def samples():
    path = os.environ["DISTDEBUG_RUN_DIR"] + "/host.jsonl"
    return open(path).read().count("time_ns") if os.path.exists(path) else 0
before = samples()
while samples() < before + 3:
    time.sleep(0.01)
if sys.argv[1] == "killed":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""
RAISES = {
    "before torch": "import no_such_module",
    "before a group": "import torch.distributed; import no_such_module",
}
PROBES = """
import subprocess, sys
tried = subprocess.run([sys.executable, "-c", "import no_such_module"], capture_output=True)
sys.exit(0 if tried.returncode else 3)
"""
BY_MPI = pytest.mark.parametrize(
    "name", ["OMPI_COMM_WORLD_RANK", pytest.param("PMI_RANK", marks=pytest.mark.long)]
)


@pytest.fixture(name="launcher")
def _launcher(tmp_path: Path) -> list[str]:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    return ["--", sys.executable, "launcher.py"]


def test_a_rank_that_is_killed_on_the_way(launcher: list[str], tmp_path: Path) -> None:
    done = runs.run("exec", [*launcher, "killed"], tmp_path)
    assert done.exit_code == 94, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"], error["victims"]) == ("rank_died", [1], [0])
    assert "SIGKILL" in error["message"]


def test_ranks_that_need_no_torch(launcher: list[str], tmp_path: Path) -> None:
    done = runs.run("exec", [*launcher, "well"], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []


@BY_MPI
@pytest.mark.parametrize("when", RAISES)
def test_a_rank_of_mpi_that_raises_on_the_way(name: str, when: str, tmp_path: Path) -> None:
    """mpiexec sets no RANK."""
    (tmp_path / "rank.py").write_text(RAISES[when])
    done = runs.run("exec", ["--", sys.executable, "rank.py"], tmp_path, {name: "3"})
    assert (done.report["outcome"], done.exit_code) == ("rank_exception", 1), done.explain()
    (error,) = done.errors
    assert error["culprits"] == [3], done.explain()
    assert "No module named 'no_such_module'" in error["message"]
    assert error["ranks"]["3"]["location"]["line"] == 1


@BY_MPI
def test_a_rank_of_mpi_whose_helper_raises(name: str, tmp_path: Path) -> None:
    """The helper has MPI's variables, too, and is no rank."""
    (tmp_path / "rank.py").write_text(PROBES)
    words = ["--allow-unwatched", "--", sys.executable, "rank.py"]
    done = runs.run("exec", words, tmp_path, {name: "3"})
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []

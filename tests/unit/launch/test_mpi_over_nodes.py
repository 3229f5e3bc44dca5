"""`distdebug run --launcher mpi --hostfile`: what mpiexec is told, and what is refused before."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from distdebug.commands.run import RunCommand
from distdebug.errors import UsageError
from distdebug.launch.mpi_over_nodes import command_over_nodes
from distdebug.launch.mpi_rank import with_rank
from distdebug.launch.torchrun_flags import RunRequest
from tests.support import mpi


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

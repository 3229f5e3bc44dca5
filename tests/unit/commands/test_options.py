"""The flags of `run` and `exec` before the start: what can be known to be wrong with `--break`,
`--head` and `--job-key` is refused."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from distdebug.commands import options
from distdebug.commands.options import places, with_head
from distdebug.commands.run import RunCommand
from distdebug.errors import UsageError
from distdebug.launch import mpi_launcher
from distdebug.nodes.several import VARIABLE, Several
from tests.support import mpi


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nstep = 1\n")
    return ["torchrun", str(script)]


def test_a_file_is_looked_for_beside_the_script(command: list[str]) -> None:
    assert places(["train.py:3@1", "all_reduce#2"], command, 2) == (
        f"{Path(command[1]).resolve()}:3@1",
        "all_reduce#2",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train.py:3@2", "there is no rank 2; ranks count from 0 to 1"),
        ("all_reduce#2@17", "there is no rank 17; ranks count from 0 to 1"),
        ("all_reduse#2", "there is no operation all_reduse; did you mean all_reduce?"),
        ("trian.py:3", "there is no file trian.py"),
        ("train.py:2", "line 2 has no code at which to stop; line 3 has"),
    ],
)
def test_what_cannot_be(command: list[str], text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"--break {text}: .*{says[:20]}") as refused:
        places([text], command, 2)
    assert says in str(refused.value)


def test_a_rank_of_a_world_whose_size_is_not_known(command: list[str]) -> None:
    assert places(["all_reduce#2@17"], command) == ("all_reduce#2@17",)


KEY = "k" * 32


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add(parser)
    return parser.parse_args(words)


@pytest.fixture(name="job_key")
def _job_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(VARIABLE, raising=False)
    file = tmp_path / "job.key"
    file.write_text(KEY)
    file.chmod(0o600)
    return str(file)


def test_where_nodes_meet(job_key: str) -> None:
    several = with_head(parsed("--head", "node0:29600", "--job-key", job_key), None)
    assert several is not None
    assert several.agreed is not None
    assert (several.agreed.host, several.agreed.port) == ("node0", 29600)
    assert several.agreed.key == KEY.encode()
    assert several.fewest == 1
    known = Several(4, 4, task="RANK=1")
    several = with_head(parsed("--head", "node0:29600", "--job-key", job_key), known)
    assert several is not None
    assert (several.fewest, several.task) == (4, "RANK=1")


def test_without_it_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    assert with_head(parsed(), None) is None


def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"make one with .*token_hex"):
        with_head(parsed("--head", "node0:29600"), None)


def test_a_key_for_nothing(job_key: str) -> None:
    with pytest.raises(UsageError, match="--job-key is of --head"):
        with_head(parsed("--job-key", job_key), None)


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (("--check-every", "3", "--check", "nan"), "--check-every needs --check replicas"),
        (("--values-every", "3"), "--values-every needs --values"),
        (("--interface", "nope0"), r"--interface nope0: this host has no such interface \(it has"),
    ],
)
def test_what_is_of_no_use(words: tuple[str, ...], needs: str) -> None:
    with pytest.raises(UsageError, match=needs):
        options.common(parsed(*words), ["train.py"], 2)


def test_the_mpi_launcher_needs_hosts_for_it(
    job_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command, parser = RunCommand(), argparse.ArgumentParser()
    command.configure(parser)
    words = ["--launcher", "mpi", "--head", "node0:1", "--job-key", job_key, "-n", "2", "train.py"]
    with pytest.raises(UsageError, match="--head with --launcher mpi needs --hostfile"):
        command.run(command.parse(parser, words))


@pytest.mark.parametrize("by_file", [True, False])
def test_over_hosts_every_rank_gets_it_from_the_mpi_launcher(
    by_file: bool, job_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key never stands on a command line: it is in the file on each host, or the variable is
    handed on by its name."""
    mpi.python("openmpi")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts").write_text("node0 slots=1\nnode1 slots=1\n")
    became: list[tuple[list[str], dict[str, str]]] = []

    def become(_file: str, words: list[str], given: dict[str, str]) -> None:
        became.append((words, given))
        held[0].holder.close()  # which mpiexec would have

    def remembered(*given: Any) -> mpi_launcher.MpiCommand:
        held.append(made_by(*given))
        return held[0]

    held: list[mpi_launcher.MpiCommand] = []
    made_by = mpi_launcher.command_over_nodes
    monkeypatch.setattr(mpi_launcher, "command_over_nodes", remembered)
    monkeypatch.setattr(os, "execvpe", become)
    key = Path(job_key).read_text().strip()
    words = ["--launcher", "mpi", "--hostfile", "hosts", "-n", "2", "--head", "node0:29600"]
    if by_file:
        words += ["--job-key", job_key]
    else:
        monkeypatch.setenv(VARIABLE, key)
    command, parser = RunCommand(), argparse.ArgumentParser()
    command.configure(parser)
    command.run(command.parse(parser, [*words, "train.py"]))
    ((told, given),) = became
    assert "--head=node0:29600" in told[told.index("exec") :]
    assert not any(key in word for word in told)
    if by_file:
        assert f"--job-key={job_key}" in told
    else:
        assert given[VARIABLE] == key
        assert told[told.index(VARIABLE) - 1] == "-x"

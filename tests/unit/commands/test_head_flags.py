"""`--head` and `--job-key`, as they are typed: what is wrong is said before anything starts."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from debugger.commands import options
from debugger.commands.head_flags import with_head
from debugger.commands.run import RunCommand
from debugger.errors import UsageError
from debugger.nodes.agreed import VARIABLE
from debugger.nodes.several import Several

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


def test_it_is_not_of_the_mpi_launcher(
    job_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command, parser = RunCommand(), argparse.ArgumentParser()
    command.configure(parser)
    words = ["--launcher", "mpi", "--head", "node0:1", "--job-key", job_key, "-n", "2", "train.py"]
    with pytest.raises(UsageError, match="--head is not of --launcher mpi"):
        command.run(command.parse(parser, words))

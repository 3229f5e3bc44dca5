"""Who is given a key, and who can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from distdebug.record.runs.artefact import FILE
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.supervisor import run_options as job_key

HERE = {"DISTDEBUG_ONE_HOST": "1"}


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / ".distdebug")


def test_ranks_of_one_host_are_given_one(directory: RunDirectory) -> None:
    path = Path(job_key.key_variables(HERE, directory)["DISTDEBUG_KEY_FILE"])
    assert path.parent == directory.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == 64
    assert FILE.fullmatch(path.name) is None, "it must not be packed for others"
    first = path.read_bytes()
    job_key.key_variables(HERE, directory)
    assert path.read_bytes() != first


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"DISTDEBUG_ONE_HOST": ""},
        {**HERE, "DISTCORE_KEY_FILE": "/home/me/key"},
        {**HERE, "DISTCORE_KEY_FILE": ""},
    ],
)
def test_others_are_not(environment: dict[str, str], directory: RunDirectory) -> None:
    assert job_key.key_variables(environment, directory) == {}
    assert not (directory.path / job_key.FILE).exists()


def test_a_directory_that_takes_nothing(directory: RunDirectory) -> None:
    (directory.path / job_key.FILE).mkdir()
    assert job_key.key_variables(HERE, directory) == {}

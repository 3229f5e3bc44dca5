"""The files that a program makes are told from those that were there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distdebug.commands.resume_check import Runs, files_here
from distdebug.errors import UsageError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    (tmp_path / "here" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text("pass")
    Path("data", "words.txt").write_text("a b")
    return Runs(tmp_path / "runs", files_here(), quiet=True)


def test_what_it_has_made_is_moved(runs: Runs) -> None:
    Path("out", "deep").mkdir(parents=True)
    Path("out", "deep", "model.pt").write_text("weights")
    Path("data", "cache.bin").write_text("words")
    runs.move_files("through")
    assert {str(one) for one in files_here()} == {"train.py", "data/words.txt"}
    assert not Path("out").exists()
    moved = runs.folder / "files-through"
    assert (moved / "out" / "deep" / "model.pt").read_text() == "weights"
    assert (moved / "data" / "cache.bin").exists()


def test_what_was_there_and_is_written_anew_is_refused(runs: Runs) -> None:
    Path("data", "words.txt").write_text("a b c")
    with pytest.raises(UsageError, match="1 file anew that was there before, such as data/words"):
        runs.move_files("through")
    assert Path("data", "words.txt").read_text() == "a b c"


def test_the_file_of_our_own_output_is_left_alone(runs: Runs) -> None:
    """`resume-check train.py > log.txt`"""
    stdout = os.dup(1)
    with open("log.txt", "w") as log:
        os.dup2(log.fileno(), 1)
    try:
        os.write(1, b"through: ...")
        before = Runs(runs.folder, files_here(), quiet=True)
        os.write(1, b"interrupted: ...")
        before.move_files("through")
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert Path("log.txt").exists()


def test_the_runs_own_folder_stays(runs: Runs) -> None:
    inside = Runs(Path("checked"), runs.before, quiet=True)
    Path("checked", "through").mkdir(parents=True)
    Path("checked", "through", "report.json").write_text("{}")
    Path("model.pt").write_text("weights")
    inside.move_files("through")
    assert Path("checked", "through", "report.json").exists()
    assert Path("checked", "files-through", "model.pt").exists()

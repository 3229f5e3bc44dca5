"""Run directories: private, found again, never somebody else's, never fatal."""

from __future__ import annotations

import errno
import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from distdebug.record.requests.supervision import is_live
from distdebug.record.runs.recorded_runs import list_runs, prune
from distdebug.record.runs.run_directory import RunDirectory, RunDirectoryError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_directory_is_private_and_the_latest(tmp_path: Path) -> None:
    base = tmp_path / ".distdebug"
    run = RunDirectory.create(base)
    assert run.path.parent == base
    assert [mode(one) for one in (run.path, run.ranks, run.logs, run.stacks)] == [0o700] * 4
    assert mode(run.run_json) == 0o600
    assert os.readlink(base / "latest") == run.path.name
    later = RunDirectory.create(base)
    assert RunDirectory.open(base=base).path == later.path
    assert RunDirectory.open(run.path.name, base=base).path == run.path
    assert RunDirectory.open(run.path).path == run.path
    assert sorted(os.listdir(base)) == sorted(
        [".gitignore", "latest", run.path.name, later.path.name]
    )
    assert (base / ".gitignore").read_text() == "*\n"


def test_an_explicit_place_may_be_new_or_empty_only(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "base", explicit=tmp_path / "deep" / "mine")
    assert run.path == tmp_path / "deep" / "mine"
    assert not (tmp_path / "base").exists()
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    assert mode(RunDirectory.create(explicit=empty, base=tmp_path / "base").path) == 0o700
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        RunDirectory.create(explicit=tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["thesis.txt"]


def test_places_that_others_control_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        RunDirectory.create(explicit=tmp_path / "link")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        RunDirectory.create(tmp_path / "link")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(RunDirectoryError, match="every user may replace"):
        RunDirectory.create(explicit=shared / "run")
    with pytest.raises(RunDirectoryError, match="every user may replace"):
        RunDirectory.create(shared)
    shared.chmod(0o1777)
    RunDirectory.create(tmp_path / "base", shared / "run")
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="not a directory"):
        RunDirectory.create(explicit=tmp_path / "file" / "run")


def test_what_is_not_ours_is_not_opened(tmp_path: Path) -> None:
    def problem(path: Path | str | None) -> str:
        with pytest.raises(RunDirectoryError) as caught:
            RunDirectory.open(path, base=tmp_path / "base")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "there is no run below" in problem(None)
    assert "there is no run directory" in problem(tmp_path / "nothing")
    assert "it has no run.json" in problem(tmp_path)
    for text, words in (
        ("{", "is not JSON"),
        ('{"schema": 3}', "something else's"),
        ("[]", "something else's"),
        ('{"schema": "distdebug.run/99"}', "another version"),
    ):
        (tmp_path / "run.json").write_text(text)
        assert words in problem(tmp_path)
    assert "is a file" in problem(tmp_path / "run.json")


@pytest.mark.parametrize("path", ["x" * 300, "x/" * 3000], ids=["name", "path"])
def test_what_cannot_be_looked_at_is_one_sentence(tmp_path: Path, path: str) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be read: file name too long"):
        RunDirectory.open(tmp_path / path)


def test_a_run_json_that_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(RunDirectoryError, match="not JSON"):
        RunDirectory.open(tmp_path)


def test_json_is_replaced_whole_and_private(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "base")
    assert run.write_json("report.json", {"outcome": "ok"})
    assert run.write_json("run.json", {"command": ["train.py"]})
    assert mode(run.report_json) == 0o600
    assert json.loads(run.run_json.read_text())["schema"] == "distdebug.run/1"
    assert RunDirectory.open(run.path).path == run.path
    circle: dict[str, object] = {}
    circle["self"] = circle
    with pytest.raises(ValueError):
        run.write_json("report.json", circle)
    assert json.loads(run.report_json.read_text()) == {"outcome": "ok"}
    assert not list(run.path.glob(".*"))


def test_a_large_document_is_written_in_pieces(tmp_path: Path) -> None:
    """As a whole the report of 16,384 ranks would take 60 MB for a moment."""
    directory = RunDirectory.create(tmp_path / ".distdebug")
    document = {"ranks": {str(number): {"state": "waits"} for number in range(20_000)}}
    tracemalloc.start()
    try:
        assert directory.write_json("report.json", document)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    written = directory.report_json.read_text()
    assert written == json.dumps(document, indent=2) + "\n"
    assert most_bytes < len(written) / 2


def test_events_are_lines(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "base")
    assert run.append_event("notice", "rank 2 is\nlate", rank=2)
    assert run.append_event("notice", "again")
    first, second = (json.loads(line) for line in run.events.read_text().splitlines())
    assert (first["message"], first["rank"]) == ("rank 2 is\nlate", 2)
    assert second["time_ns"] >= first["time_ns"] > 0
    assert mode(run.events) == 0o600


def test_a_vanished_directory_is_told_once_and_kills_nobody(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "base")
    run.path.rename(tmp_path / "gone")
    assert not run.write_json("report.json", {})
    assert not run.append_event("notice", "x")
    assert not run.append_event("notice", "y")
    assert len(run.failures) == 2
    assert "no such file or directory" in run.failures[0]


def test_a_full_disk_is_told_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "base")
    run.write_json("report.json", {"outcome": "ok"})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert not run.write_json("report.json", {"outcome": "deadlock"})
    assert json.loads(run.report_json.read_text()) == {"outcome": "ok"}
    assert not list(run.path.glob(".*"))
    assert "no space left on device" in run.failures[0]


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "base")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run.events.symlink_to(victim)
    run.report_json.symlink_to(victim)
    assert not run.append_event("notice", "x")
    assert run.write_json("report.json", {})
    assert victim.read_text() == "mine"
    assert not run.report_json.is_symlink()


def test_runs_are_listed_newest_first_and_pruned(tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert list_runs(base) == []
    runs = [RunDirectory.create(base) for _ in range(4)]
    for number, run in enumerate(runs):  # four starts within one second would tie
        renamed = base / f"20260101-00000{number}-abcd"
        run.path.rename(renamed)
        run.path = renamed
    runs[1].write_json("run.json", {"command": ["train.py", "--lr", 1]})
    runs[1].write_json("report.json", {"outcome": "deadlock"})
    (base / "20250101-000000-aaaa").mkdir()  # not ours
    (base / "20250101-000000-bbbb").symlink_to(runs[0].path)
    entries = list_runs(base)
    assert [entry.path for entry in entries] == [run.path for run in reversed(runs)]
    assert entries[2].outcome == "deadlock"
    assert entries[2].command == ("train.py", "--lr", "1")
    assert entries[0].started_s - entries[3].started_s == 3
    assert all(entry.live for entry in entries)
    for run in runs[1:]:
        run.close()
    assert is_live(runs[0].path)
    assert not is_live(runs[1].path)
    assert prune(base, keep=1) == [runs[2].path, runs[1].path]
    assert [entry.path for entry in list_runs(base)] == [runs[3].path, runs[0].path]
    assert (base / "20250101-000000-aaaa").is_dir()
    with pytest.raises(RunDirectoryError, match="0 or more"):
        prune(base, keep=-1)


def test_file_names_come_from_templates(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "base")
    assert run.flight(3) == run.path / "ranks" / "3.flight"
    assert run.stdout(0).name == "0.out"
    assert run.stderr(0).name == "0.err"
    with pytest.raises(ValueError):
        run.flight("../../etc/x")  # type: ignore[arg-type]

"""A run directory in one file: what is in it, what is left out, and that it opens as the same."""

from __future__ import annotations

import gzip
import os
import socket
import stat
import tarfile
import time
from pathlib import Path

import pytest

from distdebug.record.logs.log_file import TIMES_ENTRY
from distdebug.record.logs.log_reader import LogReader
from distdebug.record.runs import artefact
from distdebug.record.runs.artefact import SUFFIX, name_of, pack
from distdebug.record.runs.run_directory import RunDirectory, RunDirectoryError
from distdebug.record.runs.unpacking import opened
from distdebug.record.safe_files.unix_sockets import short_name
from tests.unit.commands import runs_on_disk


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A finished run with logs, a flight record and things that are no part of a report."""
    directory = runs_on_disk.finished(tmp_path / ".distdebug")
    runs_on_disk.record(directory, 0, 4, [])
    directory.stdout(0).write_bytes(b"one\ntwo\n")
    directory.log(0).write_bytes(b'{"time_ns":1,"rank":0,"event":"e"}\n')
    (directory.logs / "0.jsonl.1").write_bytes(b'{"time_ns":0,"rank":0,"event":"d"}\n')
    (directory.logs / "launcher.err").write_bytes(b"torchrun speaks\n")
    directory.stacks_text.write_text("a stack\n")
    (directory.stacks / "4711.txt").touch()
    return directory


def members(file: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(file) as archive:
        return archive.getmembers()


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_is_opened_is_what_was_packed(run: RunDirectory, tmp_path: Path) -> None:
    packed = pack(run.path, tmp_path / f"x{SUFFIX}")
    assert (packed.size_bytes, packed.left_out) == (packed.path.stat().st_size, [])
    with opened(str(packed.path)) as directory:
        assert directory.packed == packed.path
        assert directory.path.name == run.path.name
        assert files_of(directory.path) == files_of(run.path)
        made = [path for path in directory.path.rglob("*") if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
        assert stat.S_IMODE(directory.path.parent.stat().st_mode) == 0o700
        # Zeros cost no room.
        assert directory.flight(0).stat().st_blocks * 512 < run.flight(0).stat().st_size // 2
        scratch = directory.path.parent
    assert not scratch.exists()
    assert packed.size_bytes < 100_000


def test_the_file_is_private_deterministic_and_starts_with_the_run(
    run: RunDirectory, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    other.write_bytes(b"what was there before")
    pack(run.path, one)
    pack(run.path, other)
    assert one.read_bytes() == other.read_bytes()
    assert stat.S_IMODE(one.stat().st_mode) == stat.S_IMODE(other.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == [".distdebug", "one", "other"]
    names = [member.name.partition("/")[2] for member in members(one)]
    assert names == [
        "run.json",
        "report.json",
        "stacks/4711.txt",
        "stacks/stacks.txt",
        "ranks/0.flight",
        "logs/0.jsonl",
        "logs/0.jsonl.1",
        "logs/0.out",
        "logs/launcher.err",
    ]
    owners = {(member.uid, member.gid, member.uname, member.mode) for member in members(one)}
    assert owners == {(0, 0, "", 0o600)}


def test_sockets_links_and_strangers_are_left_out(run: RunDirectory, tmp_path: Path) -> None:
    before = [member.name for member in members(pack(run.path, tmp_path / "a").path)]
    (run.logs / "1.out").symlink_to(run.logs / "0.out")
    (run.path / "more.json").symlink_to("/etc/passwd")
    os.mkfifo(run.path / "pipe.json")
    (run.path / ".report.json.1.tmp").touch()
    (run.path / "train.py").touch()
    os.utime(run.run_json, (1 << 40, 1 << 40))  # a clock gone mad
    (run.path / "breakpoints").mkdir()
    (run.path / "breakpoints" / "1.json").touch()
    with socket.socket(socket.AF_UNIX) as listener, short_name(run.path) as short:
        listener.bind(f"{short}/control.sock")
        packed = pack(run.path, tmp_path / "b")
    assert [member.name for member in members(packed.path)] == before
    assert packed.left_out == []


@pytest.mark.parametrize(
    ("directory", "file"),
    [
        ("20260310-141502-7f3a", "20260310-141502-7f3a"),
        (".hidden", "hidden"),
        ("-n", "n"),
        ("späße im\nlauf", "sp__e_im_lauf"),
        ("...", "run"),
        ("x" * 200, "x" * 80),
    ],
)
def test_the_name_is_harmless_and_not_hidden(tmp_path: Path, directory: str, file: str) -> None:
    assert name_of(tmp_path / directory) == f"{file}{SUFFIX}"
    RunDirectory.create(tmp_path / "base", tmp_path / directory).close()
    pack(tmp_path / directory, tmp_path / "packed")
    with opened(str(tmp_path / "packed")) as run:
        assert run.path.name == file


def test_of_long_logs_the_ends_are_kept(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact, "LOGS_BYTES", 9_000)
    lines = [b"line %d" % number for number in range(10_000)]
    run.stdout(1).write_bytes(b"\n".join(lines) + b"\n")
    end, times = 0, []
    for number, line in enumerate(lines):
        end += len(line) + 1
        times.append(TIMES_ENTRY.pack(end, number))
    (run.logs / "1.out.times").write_bytes(b"".join(times))
    records = [b'{"time_ns":%d,"rank":1,"event":"e%d"}' % (one, one) for one in range(2_000)]
    run.log(1).write_bytes(b"\n".join(records) + b"\n")
    short = run.stdout(0).read_bytes()
    pack(run.path, tmp_path / "packed")
    with opened(str(tmp_path / "packed")) as directory:
        assert directory.stdout(0).read_bytes() == short
        note, *kept = directory.stdout(1).read_bytes().splitlines()
        assert kept == lines[-len(kept) :]
        assert 3_000 < sum(map(len, kept)) < 4_500
        missing = sum(len(line) + 1 for line in lines[: -len(kept)])
        assert note.decode() == (
            f"[distdebug: the first {missing} bytes of this log are not in the artefact]"
        )
        # Each line that is kept has the time that it had.
        printed = list(LogReader(directory.logs, 0, ("out",), frozenset({1})).poll())
        assert [(one.time_ns, one.line) for one in printed[1:]] == [
            (number, line) for number, line in enumerate(lines) if number >= 10_000 - len(kept)
        ]
        entries = list(LogReader(directory.logs, 0, ("jsonl",), frozenset({1})).poll())
        assert entries[0].fields["event"] == "log_cut"
        assert "bytes of this log are not in the artefact" in entries[0].fields["message"]
        assert entries[-1].fields["event"] == "e1999"
        assert 3_000 < sum(len(one.line) for one in entries[1:]) < 4_500


def test_a_line_that_is_longer_than_what_is_kept(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact, "LOGS_BYTES", 5_000)
    run.stdout(1).write_bytes(b"x" * 200_000)
    pack(run.path, tmp_path / "packed")
    with opened(str(tmp_path / "packed")) as directory:
        note, rest = directory.stdout(1).read_bytes().split(b"\n")
        assert b"[distdebug: the first 195" in note
        assert 4_000 < len(rest) == rest.count(b"x") < 5_000


def test_what_is_too_large_is_left_out_and_named(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact, "FILE_BYTES", 1 << 20)
    assert pack(run.path, tmp_path / "a").left_out == ["ranks/0.flight"]
    monkeypatch.setattr(artefact, "MOST_FILES", 6)
    assert pack(run.path, tmp_path / "b").left_out == [
        "ranks/0.flight",
        "logs/0.out",
        "logs/launcher.err",
    ]
    assert len(members(tmp_path / "b")) == 6
    with opened(str(tmp_path / "b")) as directory:
        assert directory.report_json.exists()


def test_a_place_that_cannot_be_written_leaves_nothing(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        pack(run.path, tmp_path / "nowhere" / "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        pack(run.path, tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "no run", tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == [".distdebug", "folder"]


def test_a_directory_is_opened_as_ever(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (None, run.path.name, str(run.path)):
        with opened(name) as directory:
            assert (directory.path, directory.packed) == (run.path, None)
    with (
        pytest.raises(RunDirectoryError, match="there is no run directory nowhere"),
        opened("nowhere"),
    ):
        pass
    # A file with the name of a run hides the run no more than it did.
    (tmp_path / run.path.name).write_text("somebody's")
    with opened(run.path.name) as directory:
        assert directory.path == run.path


def test_packing_is_quick(run: RunDirectory, tmp_path: Path) -> None:
    for rank in range(1, 8):
        run.flight(rank).write_bytes(run.flight(0).read_bytes())
    began_s = time.process_time()
    pack(run.path, tmp_path / "x")
    assert time.process_time() - began_s < 2.0
    assert gzip.decompress((tmp_path / "x").read_bytes()).count(b"run.json") == 1

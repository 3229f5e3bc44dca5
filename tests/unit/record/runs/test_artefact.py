"""A run directory in one file: what is in it, what is left out, and that it opens as the same."""

from __future__ import annotations

import gzip
import io
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from distdebug.record.log_file import TIMES_ENTRY
from distdebug.record.runs import artefact
from distdebug.record.runs.artefact import SUFFIX, ArtefactError, name_of, opened, pack, unpack
from distdebug.record.runs.log_reader import LogReader
from distdebug.record.runs.run_directory import RunDirectory, RunDirectoryError
from distdebug.record.safe_files import short_name
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


ROOT = Path(__file__).resolve().parents[3]
RUN_JSON = b'{"schema": "distdebug.run/1"}'


class Archive:
    """An archive that is made by hand."""

    def __init__(self, form: int = tarfile.USTAR_FORMAT) -> None:
        self.raw = io.BytesIO()
        self.tar = tarfile.TarFile(fileobj=self.raw, mode="w", format=form)
        self.add("r/run.json", RUN_JSON)

    def add(
        self, name: str, body: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
    ) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        member.size = len(body) if kind == tarfile.REGTYPE else 0
        member.mode = 0o4777
        self.tar.addfile(member, io.BytesIO(body))

    def header(self, name: str, kind: bytes, size: int, body: bytes = b"") -> None:
        """A member whose header is a lie."""
        member = tarfile.TarInfo(name)
        member.type, member.size = kind, size
        form = tarfile.GNU_FORMAT if size < 0 else self.tar.format
        self.tar.fileobj.write(member.tobuf(form or tarfile.USTAR_FORMAT) + body)  # type: ignore[union-attr]

    def write(self, path: Path, after: bytes = b"") -> Path:
        self.tar.close()
        path.write_bytes(gzip.compress(self.raw.getvalue() + after, 6))
        return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where an artefact is unpacked; whatever leaves it lands beside it."""
    into = tmp_path / "outer" / "into"
    into.mkdir(parents=True)
    return into


def refusal(file: Path, place: Path) -> str:
    with pytest.raises(ArtefactError) as caught:
        unpack(file, place)
    sentence = str(caught.value)
    assert str(file) in sentence
    assert "\n" not in sentence
    assert strays(place) == []
    return sentence


def strays(place: Path) -> list[Path]:
    """What was made outside of the fixture's directory, and links anywhere."""
    into = next(one for one in (place, *place.parents) if one.name == "into")
    found = into.parent.rglob("*")
    return [one for one in found if into not in (one, *one.parents) or one.is_symlink()]


MEMBERS: list[tuple[str, dict[str, object], str]] = [
    ("/etc/evil", {}, "in the directory of one run"),
    ("../evil.json", {}, "in the directory of one run"),
    ("./r/evil.json", {}, "in the directory of one run"),
    ("other/evil.json", {}, "in the directory of one run"),
    ("r/../../evil.json", {}, "no part of a run"),
    ("r/ranks/../../../evil.json", {}, "no part of a run"),
    ("r//etc/evil.json", {}, "no part of a run"),
    ("r/logs/deep/0.out", {}, "no part of a run"),
    ("r/evil.py", {}, "no part of a run"),
    ("r/.evil.json", {}, "no part of a run"),
    ("r/sitecustomize.py", {}, "no part of a run"),
    ("r/evil.json\n", {}, "no part of a run"),
    ("r/\x1b[31mred.json", {}, r"no part of a run"),
    ("r/" + "n" * 80 + ".json", {}, "no part of a run"),
    ("r/run.json", {}, "twice"),
    ("r/a.json", {"kind": tarfile.SYMTYPE, "link": "/etc/passwd"}, "no regular file"),
    ("r/logs", {"kind": tarfile.SYMTYPE, "link": "/tmp"}, "no regular file"),
    ("r/a.json", {"kind": tarfile.LNKTYPE, "link": "r/run.json"}, "no regular file"),
    ("r/a.json", {"kind": tarfile.FIFOTYPE}, "no regular file"),
    ("r/a.json", {"kind": tarfile.CHRTYPE}, "no regular file"),
    ("r/a.json", {"kind": tarfile.BLKTYPE}, "no regular file"),
    ("r/a.json", {"kind": tarfile.CONTTYPE}, "no regular file"),
    ("r/evil", {"kind": tarfile.DIRTYPE}, "no regular file"),
    ("r/run.json", {"kind": tarfile.DIRTYPE}, "twice"),
]


@pytest.mark.parametrize(("name", "more", "says"), MEMBERS)
def test_a_member_that_is_no_file_of_a_run_is_refused(
    tmp_path: Path, place: Path, name: str, more: dict[str, object], says: str
) -> None:
    archive = Archive()
    archive.add(name, **more)  # type: ignore[arg-type]
    sentence = refusal(archive.write(tmp_path / "x"), place)
    assert says in sentence
    assert "was not packed by distdebug: it holds " in sentence
    assert "\x1b" not in sentence


def test_what_other_archivers_add_is_no_harm(tmp_path: Path, place: Path) -> None:
    archive = Archive(tarfile.PAX_FORMAT)
    for name in ("r", "r/logs", "r/ranks/"):
        archive.add(name, kind=tarfile.DIRTYPE)
    member = tarfile.TarInfo("r/logs/0.out")
    member.size, member.mtime = 2, 1_700_000_000.25  # a header of its own
    archive.tar.addfile(member, io.BytesIO(b"y\n"))
    run = unpack(archive.write(tmp_path / "x"), place)
    assert (run / "logs" / "0.out").read_bytes() == b"y\n"
    assert (run / "run.json").stat().st_mode & 0o7777 == 0o600
    assert RunDirectory.open(run).path == run


def test_sizes_are_bounded(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "most_bytes", lambda _: 1 << 20)
    archive = Archive()
    archive.add("r/bomb.out", bytes((1 << 20) + 1))
    file = archive.write(tmp_path / "x")
    assert file.stat().st_size < 10_000
    assert refusal(file, place).endswith("it holds r/bomb.out, which is too large")
    monkeypatch.setattr(artefact, "MOST_BYTES", 3 << 20)
    archive = Archive()
    for number in range(4):
        archive.add(f"r/logs/{number}.out", bytes(1 << 20))
    assert "r/logs/2.out, which is too large" in refusal(archive.write(tmp_path / "x"), place / "a")
    monkeypatch.setattr(artefact, "MOST_FILES", 10)
    archive = Archive()
    for number in range(20):
        archive.add(f"r/logs/{number}.out")
    assert "more than 10 files" in refusal(archive.write(tmp_path / "x"), place / "b")
    monkeypatch.setattr(artefact, "_MOST_STREAM_BYTES", 5 << 20)
    file.write_bytes(gzip.compress(bytes(512) + bytes(8 << 20)))
    assert "is damaged" in refusal(file, place / "c")
    archive = Archive()
    file = archive.write(tmp_path / "x", bytes(8 << 20))
    assert "it is too large" in refusal(file, place / "d")


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (tarfile.XHDTYPE, 1 << 30),
        (tarfile.XGLTYPE, 1 << 30),
        (tarfile.GNUTYPE_LONGNAME, 1 << 30),
        (tarfile.XHDTYPE, 1 << 16),
        (tarfile.XHDTYPE, -512),
        (tarfile.REGTYPE, -512),
        (tarfile.GNUTYPE_LONGNAME, -512),
        (b"Z", 1 << 50),
        (b"Z", -(1 << 20)),
        (tarfile.GNUTYPE_SPARSE, 1 << 40),
    ],
)
def test_a_header_that_lies_costs_nothing(
    tmp_path: Path, place: Path, kind: bytes, size: int
) -> None:
    archive = Archive(tarfile.GNU_FORMAT)
    archive.header("r/a.json", kind, size, b"1" * 65536)
    began_s = time.process_time()
    refusal(archive.write(tmp_path / "x"), place)
    assert time.process_time() - began_s < 2.0


def test_a_sparse_file_is_refused(tmp_path: Path, place: Path) -> None:
    archive = Archive(tarfile.PAX_FORMAT)
    member = tarfile.TarInfo("r/a.json")
    member.size = 512
    member.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,1"}
    archive.tar.addfile(member, io.BytesIO(bytes(512)))
    refusal(archive.write(tmp_path / "x"), place)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file: file.write_bytes(b""), "is not a run packed by distdebug"),
        (lambda file: file.write_bytes(b"hello\n"), "name the directory of a run, or a file"),
        (lambda file: zipfile.ZipFile(file, "w").writestr("a", "b"), "unpack that"),
        (lambda file: file.write_bytes(b"\x1f\x8b"), "is damaged, cut short"),
        (lambda file: file.write_bytes(b"\x1f\x8b\x08" + b"x" * 50), "is damaged, cut short"),
        (lambda file: file.write_bytes(gzip.compress(b"")), "is damaged, cut short"),
        (lambda file: file.write_bytes(gzip.compress(b"x" * 5000)), "is damaged, cut short"),
        (lambda file: file.write_bytes(gzip.compress(bytes(10240))), "is damaged, cut short"),
        (lambda file: Archive().write(file, b"more"), "something follows its end"),
    ],
)
def test_what_is_no_artefact_is_one_sentence(
    tmp_path: Path, place: Path, make: Callable[[Path], object], says: str
) -> None:
    make(tmp_path / "x")
    assert says in refusal(tmp_path / "x", place)


def test_every_cut_and_every_flip_is_found_or_harmless(tmp_path: Path, place: Path) -> None:
    run = runs_on_disk.finished(tmp_path / ".distdebug")
    run.stdout(0).write_bytes(os.urandom(3000))
    whole = pack(run.path, tmp_path / "whole").path.read_bytes()
    chance = random.Random(7)
    file = tmp_path / "x"
    for number, end in enumerate([*range(1, 40, 2), *chance.sample(range(40, len(whole)), 30)]):
        file.write_bytes(whole[:end])
        refusal(file, place / f"cut{number}")
    raw = gzip.decompress(whole)
    for number in range(120):
        data = bytearray(raw)
        # Headers lie at multiples of 512.
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data) // 512) * 512 + chance.randrange(512)
            data[at] = chance.randrange(256)
        if number % 2:  # with checksums that fit
            for at in range(0, len(data), 512):
                if data[at + 257 : at + 262] == b"ustar":
                    data[at + 148 : at + 156] = b" " * 8
                    total = sum(data[at : at + 512])
                    data[at + 148 : at + 156] = b"%06o\0 " % total
        file.write_bytes(gzip.compress(bytes(data), 1))
        try:
            unpack(file, place / f"flip{number}")
        except ArtefactError:
            pass
    assert strays(place) == []


def test_without_a_run_json_it_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        member = tarfile.TarInfo("r/report.json")
        archive.addfile(member)
    (tmp_path / "x").write_bytes(gzip.compress(raw.getvalue()))
    with pytest.raises(RunDirectoryError) as caught, opened(str(tmp_path / "x")):
        pass
    assert str(caught.value) == (
        f"{tmp_path / 'x'}/r is not a run directory of distdebug: it has no run.json"
    )
    assert os.listdir(tmp_path / "t") == []


def test_a_full_disk_is_one_sentence(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Archive().write(tmp_path / "x")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artefact, "_copy", full)
    assert refusal(file, place) == f"{file} cannot be unpacked: no space left on device"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "t"
    scratch.mkdir()
    file = Archive().write(tmp_path / "x")
    code = (
        "import signal, sys, time\n"
        "from distdebug.record.runs.artefact import opened\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # who runs the tests may ignore it
        "with opened(sys.argv[1]) as run:\n"
        "    print(run.path, flush=True)\n"
        "    while True:\n"
        "        time.sleep(0.05)\n"  # not pause(): the signal may come just before it
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        shown = process.stdout.readline().strip()
        assert Path(shown).is_dir()
        assert scratch in Path(shown).parents
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    finally:
        process.kill()
        process.communicate()
    assert os.listdir(scratch) == []

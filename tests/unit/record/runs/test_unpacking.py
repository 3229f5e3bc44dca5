"""Artefacts that were made to do harm, or were harmed: one sentence, and nothing is left behind."""

from __future__ import annotations

import gzip
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from distdebug.record.runs import unpacking
from distdebug.record.runs.artefact import pack
from distdebug.record.runs.run_directory import RunDirectory, RunDirectoryError
from distdebug.record.runs.unpacking import ArtefactError, opened, unpack
from tests.unit.commands import runs_on_disk

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
    monkeypatch.setattr(unpacking, "most_bytes", lambda _: 1 << 20)
    archive = Archive()
    archive.add("r/bomb.out", bytes((1 << 20) + 1))
    file = archive.write(tmp_path / "x")
    assert file.stat().st_size < 10_000
    assert refusal(file, place).endswith("it holds r/bomb.out, which is too large")
    monkeypatch.setattr(unpacking, "MOST_BYTES", 3 << 20)
    archive = Archive()
    for number in range(4):
        archive.add(f"r/logs/{number}.out", bytes(1 << 20))
    assert "r/logs/2.out, which is too large" in refusal(archive.write(tmp_path / "x"), place / "a")
    monkeypatch.setattr(unpacking, "MOST_FILES", 10)
    archive = Archive()
    for number in range(20):
        archive.add(f"r/logs/{number}.out")
    assert "more than 10 files" in refusal(archive.write(tmp_path / "x"), place / "b")
    monkeypatch.setattr(unpacking, "_MOST_STREAM_BYTES", 5 << 20)
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

    monkeypatch.setattr(unpacking, "_copy", full)
    assert refusal(file, place) == f"{file} cannot be unpacked: no space left on device"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "t"
    scratch.mkdir()
    file = Archive().write(tmp_path / "x")
    code = (
        "import signal, sys, time\n"
        "from distdebug.record.runs.unpacking import opened\n"
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

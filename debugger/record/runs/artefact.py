"""Packs a run directory into one file, for CI to keep and for others to open.

The file is a gzip-compressed tar archive, `<name>/run.json` first, made of the run's regular files
alone: no sockets, no links, no temporary files. It is bounded: of long logs only the ends are in
it, each with a note of what is missing, and what goes beyond the limits is left out and named.
The same directory always makes the same bytes.

A file that is opened may come from anywhere: nothing in it is believed. Each of its files is made
anew, private, below a new directory, and only if it is a regular file with a name that files of a
run have; so no link, no device and no path leads out of there. Sizes, numbers and what the archive
makes its reader do are bounded. Whatever is wrong is one sentence.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import signal
import stat
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from ..layout import FILE_BYTES
from ..limits import LATEST_S
from ..log_file import TIMES_ENTRY
from ..safe_files import MOST_JSON_BYTES, open_regular, replacing
from ..safe_text import clean
from .run_directory import BASE, PACKED_SUFFIX, RunDirectory, RunDirectoryError, reason

SUFFIX = PACKED_SUFFIX
FOLDERS = ("stacks", "ranks", "logs")
FILE = re.compile(
    rf"(?:(?:{'|'.join(FOLDERS)})/)?[A-Za-z0-9][A-Za-z0-9_-]{{0,60}}"
    r"\.(?:flight|values(?:\.1)?|jsonl(?:\.1)?|(?:out|err)(?:\.1)?(?:\.times)?|txt|json|xml|html|toml)"
)
"""The names of the files of a run, relative to its directory."""
RUN = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
"""The name of the archive's one top directory."""

MOST_FILES = 8192
MOST_BYTES = 2 << 30
"""The most bytes of all files together, before compression: 800 flight records."""
LOGS_BYTES = 64 << 20
"""The most bytes of all logs together, before compression: the longest ones give way."""
TIMES_BYTES = 1 << 20
NOTE_BYTES = 1 << 10
"""More than the note takes that stands for what was left out of a log."""
_FIRST = ("run.json", "report.json", "report.txt", "report.html", "junit.xml")
_LINE_BYTES = 1 << 16
_TIMES = ".times"
_MOST_TIMES_BYTES = 256 << 20
"""The most bytes of one such file, before what belongs to the kept end of its log is chosen."""
_PIECE_BYTES = 1 << 16
_HEADER_BYTES = 512
"""The headers that we write, and what others need for a name and times. Older Pythons take seconds
for a malicious one of a few kilobytes."""
_MOST_STREAM_BYTES = MOST_BYTES + MOST_FILES * 4096
"""With the headers and the padding of each file."""
_DAMAGED = (
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    RecursionError,
)
"""The errors of tarfile and gzip over bytes that make no sense."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A finished artefact. `left_out`: the files that did not fit, or could not be read."""

    path: Path
    size_bytes: int
    left_out: Sequence[str]


def name_of(run: Path) -> str:
    """The name of the artefact of this run directory: never that of a hidden file, which CI
    systems do not collect."""
    return f"{_top(run)}{SUFFIX}"


def pack(run: Path, target: Path) -> Packed:
    """Write the artefact, whole or not at all, readable by its owner only; in place of a file that
    is there already. Raises OSError."""
    with replacing(target) as file:
        left_out = _Packing(run).write(file)
        file.flush()
        size_bytes = file.tell()
    return Packed(target, size_bytes, left_out)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A file as it is packed."""

    body: IO[bytes] | _Joined
    size_bytes: int
    time_s: int


class _Packing:
    """A directory on its way into a file."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files = _files(run)
        self._kept = _kept({name: size for name, size in self._files.items() if is_log(name)})
        self._starts: dict[str, tuple[int, int]] = {}
        """The place where the kept end of a log begins, and how long the note before it is."""

    def write(self, file: IO[bytes]) -> list[str]:
        """Returns the names of what was left out. Raises OSError."""
        left_out: list[str] = []
        files = total = 0
        with (
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for name in self._files:
                try:
                    piece = self._piece(name)
                except OSError:
                    left_out.append(name)
                    continue
                with contextlib.closing(piece.body):
                    size = piece.size_bytes
                    fits = size <= most_bytes(name) and total + size <= MOST_BYTES
                    if not fits or files == MOST_FILES:
                        left_out.append(name)
                        continue
                    files, total = files + 1, total + size
                    member = tarfile.TarInfo(f"{_top(self._run)}/{name}")
                    member.size, member.mtime, member.mode = size, piece.time_s, 0o600
                    archive.addfile(member, piece.body)
        return left_out

    def _piece(self, name: str) -> _Piece:
        """Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = open(os.open(self._run / name, flags), "rb")  # noqa: SIM115
        try:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{name} is not a file any more")
            size, time_s = found.st_size, min(max(0, int(found.st_mtime)), LATEST_S)
            if size > self._kept.get(name, size):
                start = _line_start(file, size - self._kept[name], size)
                note = _note(name, start)
                self._starts[name] = start, len(note)
                file.seek(start)
                return _Piece(_Joined(note, file), len(note) + size - start, time_s)
            if name.endswith(_TIMES):
                with file:
                    times = self._times(name, file.read(_MOST_TIMES_BYTES))
                return _Piece(io.BytesIO(times), len(times), time_s)
        except BaseException:
            file.close()
            raise
        return _Piece(file, size, time_s)

    def _times(self, name: str, times: bytes) -> bytes:
        """Returns when the lines of a log came, for what is kept of it; the log was packed
        before."""
        times = times[: len(times) // TIMES_ENTRY.size * TIMES_ENTRY.size]
        start, note_bytes = self._starts.get(name.removesuffix(_TIMES), (0, 0))
        if start:
            times = b"".join(
                TIMES_ENTRY.pack(offset - start + note_bytes, time_ns)
                for offset, time_ns in TIMES_ENTRY.iter_unpack(times)
                if offset > start
            )
        return times[-TIMES_BYTES:]


class _Joined(io.RawIOBase):
    """A note, and the rest of a file behind it."""

    def __init__(self, note: bytes, file: IO[bytes]) -> None:
        self._note = io.BytesIO(note)
        self._file = file

    def read(self, size: int = -1) -> bytes:
        note = self._note.read(size)
        return note + self._file.read(size - len(note))

    def close(self) -> None:
        self._file.close()
        super().close()


def _top(run: Path) -> str:
    name = re.sub(r"[^\w.-]", "_", run.name, flags=re.ASCII).lstrip(".-")[:80]
    return name or "run"


def most_bytes(name: str) -> int:
    """Returns how large a file of this name is at most, in an artefact."""
    if name.endswith(_TIMES):
        return TIMES_BYTES
    if name.endswith(".flight"):
        return FILE_BYTES
    return LOGS_BYTES + NOTE_BYTES if is_log(name) else MOST_JSON_BYTES


def is_log(name: str) -> bool:
    return name.removesuffix(".1").endswith((".out", ".err", ".jsonl"))


def _files(run: Path) -> dict[str, int]:
    """The files to pack, in order, and their sizes. Raises OSError where there is no directory."""
    found: dict[str, int] = {}
    for folder in ("", *FOLDERS):
        try:
            entries = sorted(os.scandir(run / folder), key=lambda entry: entry.name)
        except OSError:
            if not folder:
                raise
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if FILE.fullmatch(name) and entry.is_file(follow_symlinks=False):
                found[name] = entry.stat(follow_symlinks=False).st_size
    first = [name for name in _FIRST if name in found]
    return {name: found[name] for name in (*first, *(one for one in found if one not in first))}


def _kept(logs: Mapping[str, int]) -> dict[str, int]:
    """Returns how many bytes of each log that is too long are kept: of all the same, the most that
    fits."""
    left = LOGS_BYTES
    waiting = sorted(logs.values())
    while waiting:
        share = left // len(waiting)
        if waiting[0] > share:
            return {name: share for name, size in logs.items() if size > share}
        left -= waiting.pop(0)
    return {}


def _line_start(file: IO[bytes], at: int, size: int) -> int:
    """Returns where the first line begins at or behind `at`, which may be in the middle of a long
    one."""
    file.seek(at - 1)
    before, newline, _ = file.read(_LINE_BYTES).partition(b"\n")
    start = at + len(before)
    return start if newline and start < size else at


def _note(name: str, left_out: int) -> bytes:
    """Returns what stands in a log for the bytes that were left out: a line, or a record."""
    sentence = f"the first {left_out} bytes of this log are not in the artefact"
    if name.removesuffix(".1").endswith((".out", ".err")):
        return f"[distdebug: {sentence}]\n".encode()
    record: dict[str, Any] = {"level": "warning", "event": "log_cut", "kind": "log_cut"}
    return json.dumps({**record, "message": sentence}, separators=(",", ":")).encode() + b"\n"


class ArtefactError(RunDirectoryError):
    """The file cannot be opened as a run; the message is one sentence for the user."""


@contextlib.contextmanager
def opened(run: str | None, base: Path = BASE) -> Iterator[RunDirectory]:
    """The run that `run` names: a directory as `RunDirectory.open` takes it, or an artefact, which
    is unpacked into a directory that is gone after the `with`.

    Raises RunDirectoryError. Where an error of the body names the directory of an artefact, it
    names the artefact in the end: that is what its reader knows.
    """
    if run is None or not os.path.isfile(run) or os.path.isdir(base / run):
        yield RunDirectory.open(run, base)
        return
    with scratch_folder() as scratch:
        try:
            directory = RunDirectory.open(unpack(Path(run), scratch))
            directory.packed = Path(run)
            yield directory
        except Exception as error:
            if len(error.args) == 1 and isinstance(error.args[0], str):
                error.args = (error.args[0].replace(str(scratch), run),)
            raise


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder that is gone after the `with`, by SIGTERM and a closed terminal, too."""
    with (
        _ended_by_signals(),
        tempfile.TemporaryDirectory(prefix="distdebug-", ignore_cleanup_errors=True) as scratch,
    ):
        yield Path(scratch)


def unpack(file: Path, into: Path) -> Path:
    """Unpack an artefact into this empty directory; returns the run directory below it.

    Raises ArtefactError.
    """
    try:
        with open(open_regular(os.path.realpath(file)), "rb") as packed:
            start = packed.read(4)
            if start[:2] != b"\x1f\x8b":
                hint = "name the directory of a run, or a file that --ci has packed"
                if start == b"PK\x03\x04":
                    hint = "it is a zip archive; unpack that, and open the file in it"
                raise ArtefactError(f"{file} is not a run packed by distdebug: {hint}")
            packed.seek(0)
            with gzip.GzipFile(fileobj=packed) as stream:
                return _Unpacking(file, into).read(_Forward(stream))
    except _DAMAGED as error:
        raise ArtefactError(
            f"{file} is damaged, cut short or not packed by distdebug ({clean(str(error), 200)})"
        ) from error
    except OSError as error:
        raise ArtefactError(f"{file} cannot be unpacked: {reason(error)}") from error


class _Forward:
    """A stream as tarfile reads it: forward, in small headers and up to an end, so that none makes
    it take gigabytes or go round in circles."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError("a header is too long")
        return self.take(size)

    def seek(self, to: int) -> None:
        if to < self._at:
            raise tarfile.ReadError("a header leads backwards")
        while self._at < to:
            if not self.take(to - self._at):
                raise EOFError("its end is missing")

    def take(self, most: int) -> bytes:
        """The next bytes, a piece at a time; none at the end."""
        if self._at > _MOST_STREAM_BYTES:
            raise tarfile.ReadError("it is too large")
        received = self._stream.read(min(most, _PIECE_BYTES))
        self._at += len(received)
        return received


class _Unpacking:
    """An archive on its way into a directory."""

    def __init__(self, file: Path, into: Path) -> None:
        self._file = file
        self._into = into
        self._top = ""
        self._seen: set[str] = set()
        self._total_bytes = self._log_bytes = 0

    def read(self, stream: _Forward) -> Path:
        """Raises ArtefactError, OSError, and what is _DAMAGED."""
        like_a_file: Any = stream
        with tarfile.open(fileobj=like_a_file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                self._take(member, stream)
            if not self._seen:
                raise tarfile.ReadError("it is empty")
            while received := stream.take(_PIECE_BYTES):  # to the end, where the checksum is
                if received.strip(b"\0"):
                    raise tarfile.ReadError("something follows its end")
        return self._into / self._top

    def _take(self, member: tarfile.TarInfo, stream: _Forward) -> None:
        top, _, name = member.name.partition("/")
        self._top = self._top or top
        if not RUN.fullmatch(top) or top != self._top:
            self._refuse(
                member, "which is not in the directory of one run; unpack it, and name the folder"
            )
        if f"{name}/" in self._seen or name in self._seen:
            self._refuse(member, "twice")
        if member.isdir() and name in ("", *FOLDERS):
            self._seen.add(f"{name}/")
            return
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            self._refuse(member, "which is no regular file")
        if not FILE.fullmatch(name):
            self._refuse(member, "which is no part of a run; unpack it, and name the folder")
        self._seen.add(name)
        self._total_bytes += member.size
        if is_log(name):
            self._log_bytes += max(0, member.size - NOTE_BYTES)
        too_large = max(self._log_bytes - LOGS_BYTES, self._total_bytes - MOST_BYTES) > 0
        if too_large or not 0 <= member.size <= most_bytes(name):
            self._refuse(member, "which is too large")
        if len(self._seen) > MOST_FILES:
            self._refuse(member, f"and more than {MOST_FILES} files")
        stream.seek(member.offset_data)
        path = self._into / top / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            _copy(stream, file, member.size)
        if 0 <= member.mtime < LATEST_S:
            os.utime(path, (member.mtime, member.mtime))

    def _refuse(self, member: tarfile.TarInfo, why: str) -> NoReturn:
        raise ArtefactError(
            f"{self._file} was not packed by distdebug: it holds {clean(member.name, 100)}, {why}"
        )


def _copy(stream: _Forward, file: IO[bytes], size: int) -> None:
    """Zeros, of which flight records are full, become holes: they cost no room."""
    left = size
    while left:
        received = stream.take(left)
        if not received:
            raise EOFError("its end is missing")
        left -= len(received)
        if received.strip(b"\0"):
            file.write(received)
        else:
            file.seek(len(received), os.SEEK_CUR)
    file.truncate(size)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed terminal ends this process in good order, so that nothing stays behind."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    kept: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                kept.append(number)
    try:
        yield
    finally:
        for one in kept:
            signal.signal(one, signal.SIG_DFL)

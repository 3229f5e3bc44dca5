"""Packs a run directory into one file, for CI to keep and for others to open.

The file is a gzip-compressed tar archive, `<name>/run.json` first, made of the run's regular files
alone: no sockets, no links, no temporary files. It is bounded: of long logs only the ends are in
it, each with a note of what is missing, and what goes beyond the limits is left out and named.
The same directory always makes the same bytes. `unpacking` is the other half.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..layout import FILE_BYTES
from ..limits import LATEST_S
from ..logs.log_file import TIMES_ENTRY
from ..safe_files.json_objects import MOST_BYTES as MOST_JSON_BYTES
from ..safe_files.replacing import replacing

SUFFIX = ".distdebug.tar.gz"
FOLDERS = ("stacks", "ranks", "logs")
FILE = re.compile(
    rf"(?:(?:{'|'.join(FOLDERS)})/)?[A-Za-z0-9][A-Za-z0-9_-]{{0,60}}"
    r"\.(?:flight|jsonl(?:\.1)?|(?:out|err)(?:\.1)?(?:\.times)?|txt|json|xml|toml)"
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
_FIRST = ("run.json", "report.json", "report.txt", "junit.xml")
_LINE_BYTES = 1 << 16
_TIMES = ".times"
_MOST_TIMES_BYTES = 256 << 20
"""The most bytes of one such file, before what belongs to the kept end of its log is chosen."""


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

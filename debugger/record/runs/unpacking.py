"""Opens what `artefact` has packed. The file may come from anywhere: nothing in it is believed.

Each file is made anew, private, below a new directory, and only if it is a regular file with a
name that files of a run have; so no link, no device and no path leads out of there. Sizes, numbers
and what the archive makes its reader do are bounded. Whatever is wrong is one sentence.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from ..limits import LATEST_S
from ..safe_files.bounds import open_regular
from ..safe_files.place import RunDirectoryError, reason
from ..safe_text.sanitize import clean
from .artefact import (
    FILE,
    FOLDERS,
    LOGS_BYTES,
    MOST_BYTES,
    MOST_FILES,
    NOTE_BYTES,
    RUN,
    is_log,
    most_bytes,
)
from .run_directory import BASE, RunDirectory

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
            self._refuse(member, "which is no part of a run")
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

"""Files that grow, or are replaced, as they go from a node to its head, and from the head to a node
on which somebody looks at the run of all nodes: logs, events, stacks, faults."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.reading import copies
from ..record.safe_files import object_of, open_regular, whole
from .listener import MOST_NODES
from .messages import Message, unpacked
from .mirror import Mirror

NAME = re.compile(r"\d{1,7}\.(?:jsonl|out|err)(?:\.1)?(?:\.times)?")
WHILE_RUNNING_BYTES = 16 << 10
"""At most so much in one message while the ranks run; what is left follows at the end."""
AT_THE_END_BYTES = 256 << 10
"""On a slow network a greater message would take longer to arrive than a node may be silent."""
MOST_LOGS_BYTES = 256 << 20
"""The most that is told at the end of what was not told before."""
MOST_FILE_BYTES = 256 << 20


class LogSource:
    """The logs of this node's ranks, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[str, tuple[int, int]] = {}  # by name: inode, bytes

    def anew(self) -> None:
        """Nothing counts as told."""
        self._told.clear()

    def next(self, most_bytes: int = WHILE_RUNNING_BYTES) -> Message | None:
        """Returns what has been added since the last call; None where nothing was."""
        pieces: list[list[Any]] = []
        blob = b""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return None
        for name in names:
            if NAME.fullmatch(name) and len(blob) < most_bytes:
                with contextlib.suppress(OSError):
                    at, data = self._added(name, most_bytes - len(blob))
                    if data:
                        pieces.append([name, at, len(data)])
                        blob += data
        return Message("files", {"pieces": pieces}, blob) if pieces else None

    def _added(self, name: str, most_bytes: int) -> tuple[int, bytes]:
        path = self._folder / name
        status = os.stat(path)
        inode, at = self._told.get(name, (0, 0))
        if inode != status.st_ino or status.st_size < at:
            at = 0  # another file has taken its place: what was there is now `<name>.1`
        if status.st_size == at:
            return at, b""
        with open(open_regular(path), "rb", buffering=0) as file:
            file.seek(at)
            data = file.read(most_bytes)
        self._told[name] = (status.st_ino, at + len(data))
        return at, data


class LogCopies:
    """The head's copies, in `folder`, its own `logs/`. A rank of the head's own is left alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ours: set[str] = set()

    def apply(self, data: Mapping[str, Any], blob: bytes) -> None:
        """Raises ValueError for what is no log, and OSError."""
        start = 0
        for name, at, length in data.get("pieces", ()):
            piece = blob[start : start + length]
            start += length
            if not NAME.fullmatch(str(name)) or not 0 <= at <= MOST_FILE_BYTES:
                raise ValueError("a node reports a file that is no log")
            path = self._folder / name
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            if name not in self._ours:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, flags | os.O_EXCL, 0o600))
                    self._ours.add(name)
            if name not in self._ours:
                continue
            descriptor = os.open(path, flags, 0o600)
            try:
                if at == 0:
                    os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, piece, at)
            finally:
                os.close(descriptor)


PART_BYTES = 256 << 10
"""Goes in one message, about: on a slow network a greater one would take longer to arrive than a
head may be silent."""
REPLACED = ("faults.json", "stacks/stacks.json", "stacks/stacks.txt")
"""These are written as a whole, each time."""
GROWING = ("events.jsonl", "injected.jsonl")
"""Lines with the time at which something has happened."""
_TIMES = ("time_ns", "happened_ns")


@dataclass(slots=True)
class SentPart:
    """The part of a file that was told, and of which file of that name."""

    mark: tuple[int, int] = (0, 0)
    at: int = 0

    def next(self, path: Path, name: str, most_bytes: int) -> tuple[int, bytes, int] | None:
        """Returns what follows: where, what, and how large the file is; None where there is
        nothing."""
        try:
            with open(open_regular(path), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                written_ns = status.st_mtime_ns if name in REPLACED else 0
                mark, size = (status.st_ino, written_ns), status.st_size
                if mark != self.mark or size < self.at:
                    self.mark, self.at = mark, 0
                if self.at >= size:
                    return None
                data = os.pread(file.fileno(), min(most_bytes, size - self.at), self.at)
        except OSError:
            return None
        if name in GROWING:
            data = data[: data.rfind(b"\n") + 1]
        if not data:
            return None
        at, self.at = self.at, self.at + len(data)
        return at, data, size


class ViewCopies:
    """Makes the run directory `directory` of what the head tells. There every file that it tells of
    is a copy; this node's own files are linked (`link_own`), so that they are read as they are."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mirrors: dict[int, Mirror] = {}

    def apply(self, data: Mapping[str, Any], blob: bytes) -> None:
        """Raises ValueError, TypeError or KeyError for what makes no sense, and OSError."""
        if "pieces" in data:
            self._files(data, blob)
            return
        node = whole(data["node"])
        if not 0 < node <= MOST_NODES:
            raise ValueError("the head reports a node that is none")
        mirror = self._mirrors.get(node)
        if mirror is None:
            mirror = self._mirrors[node] = Mirror(self._directory / "ranks", node)
        mirror.correct(whole(data["add_ns"]) + steady_clock.offset_ns())
        for number, name, size in data["files"]:
            mirror.announced(int(number), str(name), int(size))
            mirror.named(int(number), str(name))
        mirror.apply(unpacked(blob))

    def _files(self, data: Mapping[str, Any], blob: bytes) -> None:
        shift_ns = whole(data["shift_ns"]) + steady_clock.offset_ns()
        start = 0
        for name, at, length, total in data["pieces"]:
            piece = blob[start : start + length]
            start += length
            if not 0 <= at <= at + length <= total <= MOST_FILE_BYTES:
                raise ValueError("the head reports a file that is none")
            if name in GROWING:
                self._write(name, at, _shifted(piece, shift_ns), appended=True)
            elif name in REPLACED:
                folder, _, last = str(name).rpartition("/")
                begun = f"{folder}/.{last}.begun" if folder else f".{last}.begun"
                self._write(begun, at, piece)
                if at + length == total:
                    os.replace(self._directory / begun, self._directory / name)
            elif str(name).startswith("logs/") and NAME.fullmatch(str(name)[len("logs/") :]):
                self._write(name, at, piece)
            else:
                raise ValueError("the head reports a file that no run has")

    def _write(self, name: str, at: int, data: bytes, appended: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._directory / name, flags, 0o600), "wb", buffering=0) as file:
            if at == 0:
                file.truncate(0)
            file.seek(0 if appended else at, os.SEEK_END if appended else os.SEEK_SET)
            file.write(data)


def _shifted(lines: bytes, shift_ns: int) -> bytes:
    """The same with times of this host's clock."""
    found = []
    for line in lines.splitlines():
        row = object_of(line)
        for name in _TIMES:
            if type(row.get(name)) is int:
                row[name] += shift_ns
        found.append(json.dumps(row).encode() + b"\n")
    return b"".join(found)


def link_own(own: Path, directory: Path) -> list[int]:
    """Have this node's own records, logs and ends stand in `directory`, too, under their names and
    as the same files; the ranks that have logs here. Raises OSError."""
    _link_all(own / "ranks", directory / "ranks")
    _link_all(own / "logs", directory / "logs")
    _link_all(own / "stacks", directory / "stacks", ".txt")
    for name in ("exits.jsonl", "host.jsonl", "run.json"):
        _link(own / name, directory / name)
    names = filter(NAME.fullmatch, os.listdir(own / "logs"))
    return sorted({int(name.partition(".")[0]) for name in names})


def _link_all(folder: Path, into: Path, suffix: str = "") -> None:
    ours = {
        name
        for name in os.listdir(folder)
        if not name.startswith(".") and name.endswith(suffix) and f"stacks/{name}" not in REPLACED
    }
    for name in ours:
        _link(folder / name, into / name)
    if folder.name == "ranks":  # a record that has got its rank's name
        for name in set(os.listdir(into)) - ours:
            if not copies.node_of(name) and not name.startswith("."):
                (into / name).unlink()


def _link(path: Path, into: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        here = path.stat().st_ino
        try:
            if into.stat().st_ino == here:
                return
        except FileNotFoundError:
            pass
        temporary = into.with_name(f".{into.name}.link")
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        os.replace(temporary, into)

"""Files that grow, or are replaced, as they go from a node to its head, and from the head to a node
on which somebody looks at the run of all nodes: logs, events, stacks, faults."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.safe_files import object_of, open_regular, whole
from .messages import Message

LOG = re.compile(r"logs/(\d{1,7})\.(?:jsonl|out|err)(?:\.1)?(?:\.times)?")
REPLACED = ("faults.json", "stacks/stacks.json", "stacks/stacks.txt")
"""These are written as a whole, each time."""
GROWING = ("events.jsonl", "injected.jsonl")
"""Lines with the time at which something has happened."""
_TIMES = ("time_ns", "happened_ns")
WHILE_RUNNING_BYTES = 16 << 10
"""At most so much of logs in one message while the ranks run; what is left follows at the end."""
PART_BYTES = 256 << 10
"""Goes in one message, about: on a slow network a greater one would take longer to arrive than its
sender may be silent."""
MOST_LOGS_BYTES = 256 << 20
"""The most that is told at the end of what was not told before."""
MOST_FILE_BYTES = 256 << 20


def logs_of(directory: Path) -> dict[str, int]:
    """Returns the logs of that run directory, each with its rank. Raises OSError."""
    names = (LOG.fullmatch(f"logs/{one}") for one in sorted(os.listdir(directory / "logs")))
    return {one[0]: int(one[1]) for one in names if one is not None}


class FileSource:
    """The sender: what has changed of the logs below a run directory since it was told last, and of
    the `others`, files of the whole run."""

    def __init__(self, directory: Path, others: Collection[str] = ()) -> None:
        self._directory = directory
        self._others = others
        self._told: dict[str, tuple[tuple[int, int], int]] = {}
        """By name: which file of that name it was, and how much of it was told."""
        self.without: Collection[int] = ()
        """The ranks whose logs the receiver has itself."""

    def anew(self) -> None:
        """Nothing counts as told."""
        self._told.clear()

    def next(self, kind: str, most_bytes: int = PART_BYTES, **more: Any) -> Message | None:
        """Returns the next part of what is new, with `more`; None where that is nothing."""
        names = [*self._others]
        with contextlib.suppress(OSError):
            logs = logs_of(self._directory)
            names += [name for name, rank in logs.items() if rank not in self.without]
        pieces: list[list[Any]] = []
        blob = b""
        for name in names:
            if len(blob) >= most_bytes:
                break
            with contextlib.suppress(OSError):
                at, data, total = self._added(name, most_bytes - len(blob))
                if data:
                    pieces.append([name, at, len(data), total])
                    blob += data
        return Message(kind, {"pieces": pieces, **more}, blob) if pieces else None

    def _added(self, name: str, most_bytes: int) -> tuple[int, bytes, int]:
        with open(open_regular(self._directory / name), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            mark = (status.st_ino, status.st_mtime_ns if name in REPLACED else 0)
            known, at = self._told.get(name, (mark, 0))
            if mark != known or size < at:
                at = 0  # another file has taken its place: what was there is now `<name>.1`
            data = os.pread(file.fileno(), min(most_bytes, size - at), at)
        if name in GROWING:
            data = data[: data.rfind(b"\n") + 1]
        self._told[name] = mark, at + len(data)
        return at, data, size


class FileCopies:
    """The receiver: copies below a run directory, which are told to nobody else. A log that is
    there already, of a rank of this node, is left alone."""

    def __init__(self, directory: Path, others: Collection[str] = ()) -> None:
        self._directory = directory
        self._others = others
        self._ours: set[str] = set()

    def apply(self, data: Mapping[str, Any], blob: bytes) -> None:
        """Raises ValueError, TypeError or KeyError for what makes no sense, and OSError."""
        shift_ns = whole(data.get("shift_ns", 0)) + steady_clock.offset_ns()
        start = 0
        for name, at, length, total in data["pieces"]:
            piece = blob[start : start + length]
            start += length
            is_log = LOG.fullmatch(str(name)) is not None
            if not is_log and name not in self._others:
                raise ValueError("another node reports a file that is no log, and none of the run")
            if not 0 <= at <= at + length <= total or at > MOST_FILE_BYTES:
                raise ValueError("another node reports a file that is none")
            if is_log:
                if self._is_ours(name):
                    self._write(name, at, piece)
            elif name in GROWING:
                self._write(name, at, _shifted(piece, shift_ns), appended=True)
            else:
                folder, _, last = name.rpartition("/")
                begun = f"{folder}/.{last}.begun" if folder else f".{last}.begun"
                self._write(begun, at, piece)
                if at + length == total:
                    os.replace(self._directory / begun, self._directory / name)

    def _is_ours(self, name: str) -> bool:
        if name not in self._ours:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._directory / name, flags, 0o600))
                self._ours.add(name)
        return name in self._ours

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

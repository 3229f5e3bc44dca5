"""The ranks' logs, from where they are written to the head's run directory, as they grow."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..record.safe_files import open_regular
from .messages import Message

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

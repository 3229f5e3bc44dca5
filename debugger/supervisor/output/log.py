"""Keeps what a rank prints: the bytes, when each part came, and torch's messages as records.

The rank cannot tell the last: such messages go past Python, and the gravest come from one that is
about to be aborted, or whose GIL is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path

from ...record import log_file
from ...record.log_file import RECORDS, TIMES_ENTRY, times_path
from ...record.safe_files import append, open_to_append
from ..limits import RETRY_S, TIMES_EVERY_S

_MOST_MESSAGE_BYTES = 1 << 14


class OutputLog:
    """A `<rank>.out` or `<rank>.err`: it keeps the end of all that came, at most `most_bytes` in
    two files. `cpp`: torch's C++ code prints there. A full disk costs the log, not the run: then
    `failure` says why, `lost_bytes` how much is missing, and it is tried again after a while."""

    def __init__(self, path: Path, rank: int, most_bytes: int, cpp: bool) -> None:
        self._path = path
        self._times = times_path(path)
        self._records = path.with_suffix(f".{RECORDS}")
        self._rank = rank
        self._most_bytes = most_bytes
        self._cpp = cpp
        self._rest = b""
        self._size = 0
        self._untold: int | None = None
        self._timed_s = 0.0
        self._retry_s = 0.0
        self.failure = ""
        self.lost_bytes = 0

    def take(self, data: bytes) -> None:
        """The rank has printed this."""
        now_s = time.monotonic()
        if now_s < self._retry_s:
            self.lost_bytes += len(data)
        else:
            try:
                self._write(data)
            except OSError as error:
                self.failure = error.strerror or str(error)
                self.lost_bytes += len(data)
                self._retry_s = now_s + RETRY_S
            else:
                self._untold = self._size
                if now_s - self._timed_s >= TIMES_EVERY_S:
                    self.note_time()
        if self._cpp:
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[-_MOST_MESSAGE_BYTES:]
            for line in lines:
                if line.startswith(b"[") or b"\r[" in line:
                    self._record(line)

    def note_time(self) -> None:
        """All that was taken so far had come by now. Call it when nothing comes, too."""
        if self._untold is None:
            return
        with contextlib.suppress(OSError):
            append(self._times, TIMES_ENTRY.pack(self._untold, time.time_ns()))
        self._untold, self._timed_s = None, time.monotonic()

    def _write(self, data: bytes) -> None:
        descriptor = open_to_append(self._path)
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._most_bytes // 2:
                self.note_time()
                os.close(descriptor)
                descriptor = -1
                older = log_file.older(self._path)
                os.replace(self._path, older)
                with contextlib.suppress(OSError):
                    os.replace(self._times, times_path(older))
                descriptor, size = open_to_append(self._path), 0
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self._size = size + len(data)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _record(self, line: bytes) -> None:
        now_ns = time.time_ns()
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")
        message = log_file.parse_glog(text[:_MOST_MESSAGE_BYTES], now_ns)
        if message is None:
            return
        identity = {"rank": self._rank, "host": socket.gethostname()}
        record = {"time_ns": message.pop("time_ns"), **identity, **message, "printed": True}
        with contextlib.suppress(OSError):
            raw = json.dumps(record, separators=(",", ":")).encode() + b"\n"
            log_file.append(self._records, raw, self._most_bytes)

"""Keeps what only a reader of a rank's output knows: when each part came, and what torch's C++
code said in it, which becomes a record in the rank's log.

The rank cannot tell: such messages go past Python, and the gravest come from one that is about to
be aborted, or whose GIL is held.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable
from pathlib import Path

from ..record import log_file
from ..record.appending import append
from ..record.log_reader import RECORDS, STDERR, TIMES_ENTRY, times_path


class OutputLog:
    """What is kept of one `<rank>.out` or `<rank>.err`. A full disk costs it, not the run."""

    def __init__(self, path: Path, rank: int, most_bytes: int) -> None:
        self._times = times_path(path)
        self._is_stderr = path.suffix == f".{STDERR}"
        self._records = path.with_suffix(f".{RECORDS}")
        self._rank = rank
        self._most_bytes = most_bytes

    def took(self, offset: int, lines: Iterable[bytes], time_ns: int) -> None:
        """The file had been read up to this offset at this time; these lines were completed."""
        with contextlib.suppress(OSError):
            append(self._times, TIMES_ENTRY.pack(offset, time_ns))
        if self._is_stderr:
            for line in lines:
                if line.startswith(b"[") or b"\r[" in line:
                    self._tell(line, time_ns)

    def _tell(self, line: bytes, time_ns: int) -> None:
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")
        message = log_file.parse_glog(text[: 1 << 14], time_ns)
        if message is None:
            return
        identity = {"rank": self._rank, "host": socket.gethostname()}
        record = {"time_ns": message.pop("time_ns"), **identity, **message, "printed": True}
        with contextlib.suppress(OSError):
            raw = json.dumps(record, separators=(",", ":")).encode() + b"\n"
            log_file.append(self._records, raw, self._most_bytes)

"""The rank's log: what the layer, the program and torch say in it, one JSON line each."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from .recorder import Recorder

_directory: Path | None = None
_recorder: Recorder | None = None


def observe(recorder: Recorder, directory: Path) -> None:
    """From now on `write` goes to `logs/<rank>.jsonl` of this run directory."""
    global _directory, _recorder
    _recorder, _directory = recorder, directory


def write(event: str, level: str = "info", **fields: Any) -> None:
    """Add a line. Never raises; nothing is written before the layer is installed."""
    if _directory is None or _recorder is None:
        return
    rank = _recorder.writer.rank
    line = {"time_ns": time.time_ns(), "level": level, "rank": rank, "event": event, **fields}
    name = f"{rank}.jsonl" if rank >= 0 else f"pid-{os.getpid()}.jsonl"
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_directory / "logs" / name, flags, 0o600)
        try:
            os.write(descriptor, (json.dumps(line, default=str) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError:
        return  # a full disk costs the log, not the run

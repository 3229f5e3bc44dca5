"""A forked rank's own standard streams: it reads nothing, and prints into its files of the run."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def into_files(logs: Path, rank: int, anew: bool = False) -> None:
    """From now on; `logs` is the run's folder of that name. `anew`: what an earlier process of the
    rank has printed is dropped."""
    flags = _FLAGS | (os.O_TRUNC if anew else 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, ending in ((1, "out"), (2, "err")):
        file = os.open(logs / f"{rank}.{ending}", flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

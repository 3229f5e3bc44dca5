"""Reads the one line that Linux keeps of a process: its state, parent, CPU time and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
DEAD_STATES = "ZXx"


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/<pid>/stat that this tool needs."""

    state: str
    parent: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_bytes: int
    wait_status: int
    """Of a zombie: how it ended, as `os.waitpid` would tell; 0 also when it is not ours to know."""


def read_stat(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    """None when there is no such process, or it cannot be read. About 15 µs."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(2048)
        fields = text[text.rindex(b")") + 2 :].split()
        return Stat(
            state=fields[0].decode(),
            parent=int(fields[1]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            rss_bytes=int(fields[21]) * PAGE_BYTES,
            wait_status=int(fields[49]) if len(fields) > 49 else 0,
        )
    except (OSError, ValueError, IndexError):
        return None

"""Reads what Linux keeps of a process: in one line its state, parent, CPU time and memory, and by
name all else of it and of its threads."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
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
    core: int
    """The one that it is on, or was on last."""
    wait_status: int
    """The wait status of a zombie: how it ended, as `os.waitpid` would tell; 0 also when it is not
    ours to know."""


def age_s(start_ticks: int) -> float:
    """Returns for how long there is a process that began then (`Stat.start_ticks`), in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS_PER_S


def read_status(path: Path) -> dict[str, str]:
    """Returns the status of a process (`/proc/<pid>/status`) or of a thread, by name; nothing when
    there is no such one, or it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def times_slept(path: Path) -> int | None:
    """Returns how often the thread with this status (`/proc/<pid>/task/<tid>/status`) has given up
    or lost the CPU, where it sleeps. None where it runs, or would if it got a core: on a crowded
    machine that takes long, and is no wait for anything. None also where nobody can tell."""
    status = read_status(path)
    if not status.get("State", "").startswith("S"):
        return None
    return sum(int(text) for name, text in status.items() if name.endswith("ctxt_switches"))


def has_torch(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the process has torch's library mapped. About a millisecond."""
    try:
        with open(proc / str(pid) / "maps", "rb") as file:
            return any(b"libtorch_cpu" in line or b"libtorch_python" in line for line in file)
    except OSError:
        return False


def has_signal(status: Mapping[str, str], mask: str, number: int) -> bool:
    """Whether this signal is in a mask of a status, such as SigCgt."""
    return bool(int(status.get(mask, "0"), 16) >> (number - 1) & 1)


def wanted_core_s(pid: int, stat: Stat, proc: Path = Path("/proc")) -> float:
    """Returns for how long it has had a core, and its main thread has waited for one, where the
    kernel counts that: a process at work wants one all the time, however seldom a crowded machine
    has one."""
    waited_ns = "0"
    with suppress(OSError, ValueError):
        _, waited_ns, _ = (proc / str(pid) / "schedstat").read_text().split()
    return stat.cpu_ticks / TICKS_PER_S + int(waited_ns) / 1e9


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
            core=int(fields[36]),
            wait_status=int(fields[49]) if len(fields) > 49 else 0,
        )
    except (OSError, ValueError, IndexError):
        return None

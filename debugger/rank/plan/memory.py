"""How much memory planned ranks have of their own, and how much this machine has left."""

from __future__ import annotations

import os
from pathlib import Path

_SHORT_SHARE = 0.04
_CGROUP = Path("/sys/fs/cgroup")


def private_bytes(pid: int) -> int:
    """What the process has that no other shares; 0 where nobody can tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def cpu_ticks(pid: int) -> int:
    """How long the process has computed, in ticks; 0 where nobody can tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return sum(map(int, stat[stat.rindex(")") + 2 :].split()[11:13]))
    except (OSError, ValueError, IndexError):
        return 0


def available_bytes() -> int:
    """What may be used yet: of the machine, or of what the container may have."""
    found = [_of_machine("MemAvailable")]
    limit = _number(_CGROUP / "memory.max")
    if limit is not None:
        used = _number(_CGROUP / "memory.current") or 0
        cached = _file_pages()
        found.append(max(0, limit - used + cached))
    return min(found)


def total_bytes() -> int:
    """All that there is."""
    limit = _number(_CGROUP / "memory.max")
    machine = _of_machine("MemTotal")
    return machine if limit is None else min(limit, machine)


def is_short() -> bool:
    """Whether next to nothing is left."""
    return available_bytes() < _SHORT_SHARE * total_bytes()


def _of_machine(name: str) -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # "max"


def _file_pages() -> int:
    """Of the container's memory, what is only a copy of files."""
    try:
        for line in (_CGROUP / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0

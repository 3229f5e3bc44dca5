"""The memory that planned ranks have of their own, and that this machine has left."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHORT_SHARE = 0.04
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a version of cgroups, and their words for memory."""

    limit: str
    used: str
    of_files: str
    kills: str


_VERSION_1 = _Files(
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"
)
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file", "memory.events")


def private_bytes(pid: int) -> int:
    """Returns the bytes of a process that no other shares; 0 where they cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def cpu_ticks(pid: int) -> int:
    """Returns how long the process has computed, in ticks; 0 where that cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return sum(map(int, stat[stat.rindex(")") + 2 :].split()[11:13]))
    except (OSError, ValueError, IndexError):
        return 0


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Returns what may be used yet: of the machine, and of what this process's container may
    have."""
    found = [_of_machine(proc, "MemAvailable")]
    for group, files, limit in _limits(proc, cgroups):
        used = _number(group / files.used) or 0
        # Part of the container's memory is only a copy of files.
        of_files = _counted(group / "memory.stat", files.of_files)
        found.append(max(0, limit - used + of_files))
    return min(found)


def total_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """All that there is."""
    limits = [limit for _, _, limit in _limits(proc, cgroups)]
    return min([_of_machine(proc, "MemTotal"), *limits])


def is_short() -> bool:
    """Whether next to nothing is left."""
    return available_bytes() < _SHORT_SHARE * total_bytes()


def out_of_memory_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """A count that rises whenever the kernel has ended a process of this machine, or of this
    process's container, for want of memory. Some are counted at several places."""
    files = [proc / "vmstat", *(group / names.kills for group, names in _groups(proc, cgroups))]
    return sum(_counted(path, "oom_kill") for path in files)


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[Path, _Files, int]]:
    """The groups that limit the memory of this process."""
    for group, files in _groups(proc, cgroups):
        limit = _number(group / files.limit)
        if limit is not None:
            yield group, files, limit


@functools.lru_cache(maxsize=1)
def _groups(proc: Path, cgroups: Path) -> tuple[tuple[Path, _Files], ...]:
    """Returns the cgroups with a limit: its own, and those around it. A process that runs a plan
    stays in them, and looks at its memory four times a second."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _VERSION_1 if controllers else _VERSION_2
        for root in (cgroups / "memory",) if controllers else (cgroups, cgroups / "unified"):
            inside = root / path.strip("/")
            # Within a container the path may be that on the host, which is not to be seen.
            around = (one for one in {inside, *inside.parents, root} if one.is_relative_to(root))
            found += [(one, files) for one in around if (one / files.limit).exists()]
    return tuple(found)


def _of_machine(proc: Path, name: str) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
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


def _counted(path: Path, name: str) -> int:
    """The number behind this name; 0 where there is none."""
    try:
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0

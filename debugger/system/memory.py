"""The memory that processes have of their own, that this machine and its containers have left, and
whom the kernel has killed for want of it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .proc import PAGE_BYTES, PROC

_SHORT_SHARE = 0.04
CGROUPS = Path("/sys/fs/cgroup")


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
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def address_space_bytes() -> int:
    """The size of this process's address space: the bytes that RLIMIT_AS limits."""
    return PAGE_BYTES * int((PROC / "self" / "statm").read_text().split()[0])


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Returns what may be used yet: of the machine, and of what this process's container may
    have."""
    found = [_of_machine(proc, "MemAvailable")]
    for group, files, limit in _limits(proc, cgroups):
        used = _number(group / files.used) or 0
        # Part of the container's memory is only a copy of files.
        of_files = _counted(group / "memory.stat", files.of_files) or 0
        found.append(max(0, limit - used + of_files))
    return min(found)


def total_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """All that there is."""
    limits = [limit for _, _, limit in _limits(proc, cgroups)]
    return min([_of_machine(proc, "MemTotal"), *limits])


def is_short() -> bool:
    """Whether next to nothing is left."""
    return available_bytes() < _SHORT_SHARE * total_bytes()


def out_of_memory_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """A count that rises whenever the kernel has ended a process of this machine, or of this
    process's container, for want of memory. Some are counted at several places."""
    files = [proc / "vmstat", *(group / names.kills for group, names in _groups(proc, cgroups))]
    return sum(_counted(path, "oom_kill") or 0 for path in files)


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
        folders = cgroup_folders("self", "memory", proc, cgroups)
    except OSError:
        folders = []
    # Within a container the path may be that on the host, which is not to be seen.
    around = {
        one: None
        for folder in folders or [cgroups / "unified"]
        for one in (folder, *folder.parents)
        if one.is_relative_to(cgroups)
    }
    versions = (_VERSION_1, _VERSION_2)
    return tuple((one, v) for one in around for v in versions if (one / v.limit).exists())


def _of_machine(proc: Path, name: str) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # "max"


def _counted(path: Path, name: str) -> int | None:
    """The number behind this name; None where there is none."""
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def cgroup_folders(
    pid: int | str, controller: str, proc: Path = PROC, cgroups: Path = CGROUPS
) -> list[Path]:
    """Returns where the files of this controller may be, for this process. Raises OSError where the
    process is not there."""
    found = []
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.strip("/")
        if controllers == "":
            found += [cgroups / inside, cgroups / "unified" / inside]
        elif controller in controllers.split(","):
            # Within a container the path may be the host's, and the mount shows its own root.
            found += [cgroups / controller / inside, cgroups / controller]
    return found


class OomWatch:
    """Tells a SIGKILL of the kernel's OOM killer from any other.

    Evidence, best first: the kernel log names the pid; the `oom_kill` counter of the rank's memory
    cgroup (version 2 or 1) rose, or of ours; the host's counter rose, where no cgroup counter can
    be read. A rise by n explains n deaths.
    """

    def __init__(
        self,
        proc: Path = PROC,
        mounted: Path = CGROUPS,
        kernel_log: Path | None = Path("/dev/kmsg"),
    ) -> None:
        self._proc = proc
        self._cgroups = mounted
        self._counters: dict[int, Path | None] = {}
        self._baseline: dict[Path, int] = {}
        # For a process that was not seen alive, such as a launcher, the counter of our own cgroup
        # stands: what we start begins in that.
        self._fallback = self._find_counter(os.getpid()) or proc / "vmstat"
        self._count_from_now(self._fallback)
        self._named: set[int] = set()
        self._kernel_log = -1
        if kernel_log is not None:
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._kernel_log = os.open(kernel_log, flags)
                os.lseek(self._kernel_log, 0, os.SEEK_END)

    def watch(self, pid: int) -> None:
        """Remembers which cgroup counts for `pid`; call it while the process lives."""
        if pid not in self._counters:
            counter = self._find_counter(pid)
            self._counters[pid] = counter
            if counter is not None:
                self._count_from_now(counter)

    def killed(self, pid: int) -> bool:
        """Whether the death of `pid` by SIGKILL was the OOM killer's work."""
        self._read_kernel_log()
        counter = self._counters.get(pid) or self._fallback
        now = _counted(counter, "oom_kill")
        risen = now is not None and now > self._baseline.get(counter, now)
        if risen:
            self._baseline[counter] += 1
        return risen or pid in self._named

    def _count_from_now(self, counter: Path) -> None:
        value = _counted(counter, "oom_kill")
        if value is not None:
            self._baseline.setdefault(counter, value)

    def _find_counter(self, pid: int) -> Path | None:
        try:
            folders = cgroup_folders(pid, "memory", self._proc, self._cgroups)
        except OSError:
            return None
        names = (_VERSION_2.kills, _VERSION_1.kills)
        candidates = (folder / name for folder in folders for name in names)
        return next((one for one in candidates if _counted(one, "oom_kill") is not None), None)

    def _read_kernel_log(self) -> None:
        while self._kernel_log >= 0:
            try:
                line = os.read(self._kernel_log, 8192)
            except BrokenPipeError:
                continue  # lines were overwritten before we read them
            except OSError:
                return
            found = re.search(rb"Killed process (\d+)", line)
            if found:
                self._named.add(int(found.group(1)))
            if not line:
                return

"""Tells who was killed for lack of memory: the OOM killer's counters, and the kernel log."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from . import cgroups

_COUNTERS = ("memory.events", "memory.oom_control")
"""The file with the counter, in version 2 and in version 1."""


class OomWatch:
    """Tells a SIGKILL of the kernel's OOM killer from any other.

    Evidence, best first: the kernel log names the pid; the `oom_kill` counter of the rank's memory
    cgroup (version 2 or 1) rose, or of ours; the host's counter rose, where no cgroup counter can
    be read. A rise by n explains n deaths.
    """

    def __init__(
        self,
        proc: Path = cgroups.PROC,
        mounted: Path = cgroups.MOUNTED,
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
        now = _read_counter(counter)
        risen = now is not None and now > self._baseline.get(counter, now)
        if risen:
            self._baseline[counter] += 1
        return risen or pid in self._named

    def close(self) -> None:
        if self._kernel_log >= 0:
            os.close(self._kernel_log)
            self._kernel_log = -1

    def _count_from_now(self, counter: Path) -> None:
        value = _read_counter(counter)
        if value is not None:
            self._baseline.setdefault(counter, value)

    def _find_counter(self, pid: int) -> Path | None:
        try:
            folders = cgroups.folders(pid, "memory", self._proc, self._cgroups)
        except OSError:
            return None
        candidates = (folder / name for folder in folders for name in _COUNTERS)
        return next((one for one in candidates if _read_counter(one) is not None), None)

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


def _read_counter(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else None

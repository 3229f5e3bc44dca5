"""The time for which the threads of a process have slept, as the kernel tells it.

Linux notes when it last gave a thread a core, by that core's clock (`se.exec_start` in
`/proc/<pid>/task/<tid>/sched`). The cores' clocks are not one: each leaves out the time that
interrupts took from it, and other guests of a virtual machine's host, so that after a busy day they
are seconds apart. A time is therefore compared with the clock of the core that the thread was on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ...record.process_stat import read_stat


class CoreClocks:
    """The clocks of this host's cores, each read once, when it is first asked for."""

    def __init__(self) -> None:
        self._ahead_ms: dict[int, float | None] = {}

    def now_ms(self, core: int) -> float | None:
        """None where the kernel does not tell, or this process may not run on that core."""
        if core not in self._ahead_ms:
            self._ahead_ms[core] = _ahead_ms(core)
        ahead_ms = self._ahead_ms[core]
        return None if ahead_ms is None else time.monotonic() * 1000 + ahead_ms


def slept(pid: int, clocks: CoreClocks) -> dict[int, float]:
    """Seconds by native id, of the threads of which it is known. About 40 µs each, and 0.1 ms once
    for each core."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        found = {int(name): _slept_s(tasks, int(name), clocks) for name in os.listdir(tasks)}
    except OSError:
        return {}
    return {thread: slept_s for thread, slept_s in found.items() if slept_s is not None}


def last_scheduled_ms(task: Path) -> float | None:
    """None where it is not told, and of a thread that was woken up on another core and waits for
    that: the kernel has 0 until it runs there, and not when it last ran."""
    try:
        with open(task / "sched") as file:
            for line in file:
                if line.startswith("se.exec_start"):
                    return float(line.rpartition(":")[2]) or None
    except (OSError, ValueError):
        pass
    return None


def _slept_s(tasks: Path, thread: int, clocks: CoreClocks) -> float | None:
    before = read_stat(thread, tasks)
    at_ms = last_scheduled_ms(tasks / str(thread))
    after = read_stat(thread, tasks)
    if before is None or after is None or at_ms is None:
        return None
    if before.core != after.core:
        return 0.0  # it has moved just now: which core's time this is, nobody knows
    now_ms = clocks.now_ms(after.core)
    return None if now_ms is None else max(0.0, now_ms - at_ms) / 1000


def _ahead_ms(core: int) -> float | None:
    """Returns by how much the core's clock is ahead of the clock that all cores share. It is read
    on the core itself: this thread goes there."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        return None
    try:
        now_ms = last_scheduled_ms(Path("/proc/thread-self"))
        return None if now_ms is None else now_ms - time.monotonic() * 1000
    finally:
        os.sched_setaffinity(0, allowed)

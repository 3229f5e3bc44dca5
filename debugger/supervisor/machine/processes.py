"""The operating system's view of the ranks' processes: alive, stopped, busy, how they ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...record import steady_clock
from ...record.exits import ExitLog, ExitStatus
from ...record.snapshot import Process, Standstill
from ...system.memory import OomWatch
from ...system.proc import DEAD_STATES, PROC, TICKS_PER_S, Stat, age_s, owner, read_stat
from ..command.launch import Launch
from ..limits import LOOKS_APART_S

BUSY_SHARE = 0.5
"""A process is busy when it used at least this share of a core over the window, or wanted to: on a
crowded machine a computing rank is runnable at every look and yet gets little."""


@dataclass(slots=True)
class _SeenProcess:
    """The facts of one process that are kept between two looks at it."""

    start_ticks: int
    started_ns: int
    sampled_s: float = 0.0
    cpu_ticks: int = 0
    looks: int = 0
    runnable_looks: int = 0
    busy: bool | None = None
    ended_ns: int | None = None
    zombie_status: ExitStatus | None = None
    oom_killed: bool | None = None


@dataclass(slots=True)
class ProcessTable:
    """Looks at processes, one read each, and remembers how the dead ones ended.

    How a process ended is known from, in this order: what its parent wrote to `exits.jsonl`, what
    the warden reaped, and the zombie itself.
    """

    exits: ExitLog
    launch: Launch | None = None
    oom: OomWatch | None = None
    proc: Path = PROC
    standstills: Mapping[int, Standstill] = field(default_factory=dict)
    """By pid, of those that stand still: whoever looks at them puts it here."""
    _seen: dict[int, _SeenProcess] = field(default_factory=dict)
    _young_ticks: dict[int, int] = field(default_factory=dict)
    _booted_ns: int = field(
        default_factory=lambda: steady_clock.now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    )

    def refresh(self) -> None:
        """Takes in the exits that were reported since the last call; once per round is enough."""
        self.exits.poll()
        if self.launch is not None:
            self.launch.poll()

    def starting(self, known: Container[int]) -> bool:
        """Whether a young process of the run, none of the known ones, was at work since the last
        call: a rank that still imports torch is neither lost nor late."""
        if self.launch is None:
            return False
        before, self._young_ticks = self._young_ticks, {}
        for pid in self.launch.descendants():
            stat = None if pid in known else read_stat(pid, self.proc)
            # One that is older than a minute does not become a rank any more.
            if stat is not None and pid != self.launch.pid and age_s(stat.start_ticks) < 60:
                self._young_ticks[pid] = stat.cpu_ticks
        return any(ticks > before.get(pid, 0) for pid, ticks in self._young_ticks.items())

    def observe(self, pid: int, start_ticks: int = 0) -> Process:
        """The state of process `pid` that began at `start_ticks` (field 22 of its stat; 0: not
        known, then the first process seen under that pid is taken for it)."""
        stat = read_stat(pid, self.proc)
        seen = self._seen.get(pid)
        if seen is None or (start_ticks and start_ticks != seen.start_ticks):
            ticks = start_ticks or (stat.start_ticks if stat is not None else 0)
            # The start is known to a tick, and the wall clock may have been set meanwhile.
            since_boot_ns = ticks * (1_000_000_000 // TICKS_PER_S) - 1_000_000_000
            seen = _SeenProcess(ticks, self._booted_ns + since_boot_ns if ticks else 0)
            self._seen[pid] = seen
        if seen.ended_ns is not None:
            return self._ended(pid, seen)
        if stat is not None and seen.start_ticks and stat.start_ticks != seen.start_ticks:
            stat = None  # the pid was given to another process
        if stat is None:
            seen.ended_ns = steady_clock.now_ns()
            return self._ended(pid, seen)
        if stat.state in DEAD_STATES:
            seen.ended_ns = steady_clock.now_ns()
            # The kernel shows the status of a zombie as 0 to those who may not trace it.
            with suppress(OSError):
                if stat.state == "Z" and os.geteuid() in (0, owner(pid, self.proc)):
                    seen.zombie_status = ExitStatus.from_wait(stat.wait_status, seen.ended_ns)
            return self._ended(pid, seen)
        if self.oom is not None:
            self.oom.watch(pid)
        self._measure(seen, stat)
        still = self.standstills.get(pid)
        return Process(alive=True, state=stat.state, cpu_busy=seen.busy, standstill=still)

    def _ended(self, pid: int, seen: _SeenProcess) -> Process:
        status = self.exits.find(pid, seen.started_ns) or seen.zombie_status
        ended_ns = seen.ended_ns
        if status is None:
            return Process(alive=False, ended_ns=ended_ns)
        if status.time_ns and ended_ns is not None:
            # Its parent may have known before we looked.
            ended_ns = min(ended_ns, status.time_ns)
        if seen.oom_killed is None:
            seen.oom_killed = (
                status.signal == signal.SIGKILL and self.oom is not None and self.oom.killed(pid)
            )
        return Process(
            alive=False,
            exit_code=status.code,
            signal=status.signal,
            oom_killed=seen.oom_killed,
            ended_ns=ended_ns,
            asked=status.asked,
            replaced=status.replaced,
        )

    def _measure(self, seen: _SeenProcess, stat: Stat) -> None:
        now_s = time.monotonic()
        elapsed_s = now_s - seen.sampled_s
        seen.looks += 1
        seen.runnable_looks += stat.state == "R"
        if elapsed_s < LOOKS_APART_S:
            return
        if seen.sampled_s:
            used_s = (stat.cpu_ticks - seen.cpu_ticks) / TICKS_PER_S
            always_runnable = seen.looks > 1 and seen.runnable_looks == seen.looks
            seen.busy = used_s >= BUSY_SHARE * elapsed_s or always_runnable
        seen.sampled_s, seen.cpu_ticks = now_s, stat.cpu_ticks
        seen.looks = seen.runnable_looks = 0

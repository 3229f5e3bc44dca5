"""When a job that was started by others has come to its hang, whatever else the machine does.

By the clock alone nobody can tell: on a busy host a rank may still import torch when the others
have slept for half a minute. What counts is how long each process has had a core or waited for one,
which the kernel adds up: who is on its way somewhere wants one all the time, however seldom it gets
it. Who computes for good stays in one function of the program for seconds of its own CPU time.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from distdebug.supervisor.stacks.stack_tree import users_frame
from distdebug.supervisor.stacks.stacks import capture, line_of
from distdebug.system.proc import (
    DEAD_STATES,
    TICKS_PER_S,
    Stat,
    has_torch,
    read_stat,
    wanted_core_s,
)

SAMPLE_S = 0.5
SETTLED_S = 3.0
SETTLED_SHARE = 0.2
"""A process that has wanted a core for less than this share of so long has come to where it stays:
one that waits in slices, or polls, wants one now and then."""
WAITING_SHARE = 0.05
"""A rank that waits wants one for less than this."""
SETTLED_CPU_S = 2.0
"""So has one that has used so much CPU in one function of the user's; importing takes longer in
all, and is in no function of the user's for so long."""
_IMPORT = re.compile(r"^\s*(?:import|from)\b")


@dataclass(slots=True)
class _Process:
    """One process below the launcher since it was last seen to change what it does."""

    wanted: deque[tuple[float, float]] = field(default_factory=deque)
    """At each sample the clock, and for how long it had wanted a core until then: seconds."""
    function: tuple[str, str] | None = None
    cpu_at_function_s: float = 0.0
    cpu_at_look_s: float = 0.0
    torch: bool = False

    def wants_less(self, share: float, for_s: float) -> bool:
        """Whether it has wanted a core for less than this share of the time before."""
        now_s, wanted_s = self.wanted[-1]
        before = next((one for one in reversed(self.wanted) if one[0] <= now_s - for_s), None)
        return before is not None and wanted_s - before[1] < share * (now_s - before[0])


@dataclass(slots=True)
class Standstill:
    """Samples of all processes below `launcher`."""

    launcher: int
    for_s: float
    _known: dict[int, _Process] = field(default_factory=dict)

    def sample(self, now_s: float) -> bool:
        """Whether a rank has been asleep for `for_s`, and all others have come to their place."""
        stats = self._stats()
        self._known = {pid: self._known.get(pid, _Process()) for pid in stats}
        for pid, one in self._known.items():
            one.torch = one.torch or has_torch(pid)
            one.wanted.append((now_s, wanted_core_s(pid, stats[pid])))
        parents = {stats[pid].parent for pid, one in self._known.items() if one.torch}
        a_rank_waits = any(
            one.torch
            and pid not in parents  # who has started others with torch may be their launcher
            and stats[pid].state == "S"
            and one.wants_less(WAITING_SHARE, self.for_s)
            for pid, one in self._known.items()
        )
        awake = [
            pid for pid, one in self._known.items() if not one.wants_less(SETTLED_SHARE, SETTLED_S)
        ]
        return a_rank_waits and self._stay_in_a_function(awake, stats)

    def _stats(self) -> dict[int, Stat]:
        found = {}
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.launcher).children(recursive=True):
                stat = read_stat(one.pid)
                if stat is not None and stat.state not in DEAD_STATES:
                    found[one.pid] = stat
        return found

    def _stay_in_a_function(self, pids: Sequence[int], stats: dict[int, Stat]) -> bool:
        """Whether each of these has used enough CPU in one function of the user's: looked at only
        after it has used some since the last look."""
        for pid in pids:
            one, cpu_s = self._known[pid], stats[pid].cpu_ticks / TICKS_PER_S
            if cpu_s - one.cpu_at_look_s < SETTLED_CPU_S / 4 and one.function is not None:
                continue
            function = _function(pid)
            one.cpu_at_look_s = cpu_s
            if function is None or function != one.function:
                one.function, one.cpu_at_function_s = function, cpu_s
        return all(
            self._known[pid].function is not None
            and stats[pid].cpu_ticks / TICKS_PER_S - self._known[pid].cpu_at_function_s
            >= SETTLED_CPU_S
            for pid in pids
        )


def _function(pid: int) -> tuple[str, str] | None:
    """The innermost function of the user's that its main thread is in; None while it imports."""
    for stack in capture([pid]).get(pid, ()):
        if stack.native_id != pid:
            continue
        frames = [frame for frame in stack.frames if not frame.native]
        found = users_frame(frames)
        if found is not None and not any(_IMPORT.match(line_of(one)) for one in frames):
            return found[0].file, found[0].function
    return None


def hangs(running: subprocess.Popen[bytes], for_s: float, limit_s: float) -> bool:
    """Wait until the job stands still, and a rank has slept for so long. False where the job ends
    before it, or works on until `limit_s`."""
    watched = Standstill(running.pid, for_s)
    until_s = time.monotonic() + limit_s
    while running.poll() is None and time.monotonic() < until_s:
        if watched.sample(time.monotonic()):
            return True
        time.sleep(SAMPLE_S)
    return False

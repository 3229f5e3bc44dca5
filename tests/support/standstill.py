"""When a job that was started by others has come to its hang, whatever else the machine does.

By the clock alone nobody can tell: on a busy host a rank may still import torch when the others
have slept for half a minute. What counts is what each process below the launcher does at every
sample: a rank that waits for a core is not asleep, and one that is on its way somewhere does not
stay in one function of the program for seconds of its own CPU time.
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

from debugger.inspection.processes import has_torch
from debugger.record.process_stat import DEAD_STATES, TICKS_PER_S, Stat, read_stat
from debugger.supervisor.source_text import line_of
from debugger.supervisor.stack_tree import users_frame
from debugger.supervisor.stacks import capture

SAMPLE_S = 0.1
SETTLED_SAMPLES = 30
SETTLED_SHARE = 0.8
"""A process that was asleep at so many of its last samples has come to where it stays: one that
waits in slices, or polls, is awake at some."""
SETTLED_CPU_S = 2.0
"""So has one that has used so much CPU in one function of the user's; importing takes longer in
all, and is in no function of the user's for so long."""
_IMPORT = re.compile(r"^\s*(?:import|from)\b")


@dataclass(slots=True)
class _Process:
    """One process below the launcher since it was last seen to change what it does."""

    asleep_since_s: float | None = None
    samples: deque[bool] = field(default_factory=lambda: deque(maxlen=SETTLED_SAMPLES))
    function: tuple[str, str] | None = None
    cpu_at_function_s: float = 0.0
    cpu_at_look_s: float = 0.0
    torch: bool = False

    @property
    def stays_asleep(self) -> bool:
        return sum(self.samples) >= SETTLED_SHARE * SETTLED_SAMPLES


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
        for pid, stat in stats.items():
            one = self._known[pid]
            one.torch = one.torch or has_torch(pid)
            one.samples.append(stat.state in "STt")
            if not one.samples[-1]:
                one.asleep_since_s = None
            elif one.asleep_since_s is None:
                one.asleep_since_s = now_s
        parents = {stats[pid].parent for pid, one in self._known.items() if one.torch}
        a_rank_waits = any(
            one.torch
            and pid not in parents  # who has started others with torch may be their launcher
            and stats[pid].state == "S"
            and one.asleep_since_s is not None
            and now_s - one.asleep_since_s >= self.for_s
            for pid, one in self._known.items()
        )
        awake = [pid for pid, one in self._known.items() if not one.stays_asleep]
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

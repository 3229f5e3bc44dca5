"""The ends of processes: the wait statuses that whoever reaped them has reported."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from . import steady_clock
from .safe_files import AddedLines, append, object_of

MOST_READ_BYTES = 1 << 20
POLITE_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""By these a launcher or a person asks a process to end: mostly since another failed."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The end of a process: an exit code or a signal. `time_ns` is Unix time, when it was reaped.
    `asked`: its parent has sent it that signal, and said so; `replaced`: for another to begin in
    its place, though it had not failed."""

    code: int | None
    signal: int | None
    time_ns: int = 0
    asked: bool = False
    replaced: bool = False

    @classmethod
    def from_wait(cls, status: int, time_ns: int = 0) -> ExitStatus:
        """Reads a raw status as `os.waitpid` gives it."""
        if os.WIFSIGNALED(status):
            return cls(None, os.WTERMSIG(status), time_ns)
        return cls(os.WEXITSTATUS(status), None, time_ns)

    @property
    def shell_code(self) -> int:
        """The code that a shell would show: 128 + n for signal n."""
        return 128 + self.signal if self.signal is not None else self.code or 0

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


def tell_asked(path: Path, pid: int, number: int, replaced: bool = False) -> None:
    """This process is about to send its child that signal; `replaced`: see ExitStatus. Raises
    OSError."""
    line = {"pid": pid, "asked": number, "replaced": replaced, "time_ns": time.time_ns()}
    append(path, f"{json.dumps(line)}\n".encode())


class ExitLog:
    """Exit statuses by pid. Reads what parents append to `exits.jsonl`, and gets the warden's.

    A reused pid is told apart by time: `find` leaves out what ended before the process began.
    """

    def __init__(self, path: Path | None = None, steady: bool = False) -> None:
        """`steady`: of a run on this host since its boot, so that the monotonic clock of those who
        report counts where they give it."""
        self._lines = None if path is None else AddedLines(path, MOST_READ_BYTES)
        self._steady = steady
        self._exits: dict[int, ExitStatus] = {}
        self._asked: dict[int, tuple[int, int, bool]] = {}
        """The last signal that a process was sent by its parent, when, and whether it is replaced.
        """

    def follow(self, path: Path) -> None:
        """Read that file from now on."""
        self._lines = AddedLines(path, MOST_READ_BYTES)

    def add(self, pid: int, status: int, time_ns: int, monotonic_ns: int = 0) -> None:
        if self._steady and monotonic_ns > 0:
            time_ns = monotonic_ns + steady_clock.offset_ns()
        self._exits[pid] = ExitStatus.from_wait(status, time_ns)

    def find(self, pid: int, started_ns: int = 0) -> ExitStatus | None:
        """Returns how `pid` ended, if that was after `started_ns` (Unix time)."""
        found = self._exits.get(pid)
        if found is None or 0 < found.time_ns < started_ns:
            return None
        number, asked_ns, replaced = self._asked.get(pid, (0, 0, False))
        if number and number == found.signal and asked_ns >= started_ns:
            return replace(found, asked=True, replaced=replaced)
        return found

    def poll(self) -> None:
        """Takes in the lines that were added since the last call; a line that is no JSON object
        with these fields is skipped. Costs one `stat` when there are none."""
        for line in self._lines.new() if self._lines is not None else ():
            try:
                value = object_of(line)
                time_ns = int(value["time_ns"])
                monotonic_ns = int(value.get("monotonic_ns", 0))
                if not (0 <= time_ns < 1 << 63 and 0 <= monotonic_ns < 1 << 63):
                    continue
                if "asked" in value:
                    replaced = value.get("replaced") is True
                    self._asked[int(value["pid"])] = int(value["asked"]), time_ns, replaced
                else:
                    self.add(int(value["pid"]), int(value["status"]), time_ns, monotonic_ns)
            except (ValueError, TypeError, KeyError, OverflowError):
                continue

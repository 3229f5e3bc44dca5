"""Whether the ranks' processes are alive, as far as this host and exits.jsonl tell."""

from __future__ import annotations

from pathlib import Path

from ..record import steady_clock
from ..record.exits import ExitLog
from ..record.snapshot import Process
from ..system.proc import DEAD_STATES, read_stat


class Processes:
    """Answers for one run; asked only while the run lives on this host."""

    def __init__(self, exits: Path, steady: bool = False) -> None:
        self.exits = ExitLog(exits, steady)
        self._ended_ns: dict[tuple[int, int], int] = {}

    def observe(self, pid: int, start_ticks: int = 0) -> Process:
        """Returns what is known of the process that began at these clock ticks after boot."""
        stat = read_stat(pid)
        alive = (
            stat is not None
            and stat.state not in DEAD_STATES
            and start_ticks in (0, stat.start_ticks)  # else the pid was given to another process
        )
        if stat is not None and alive:
            return Process(alive=True, state=stat.state)
        seen_ns = self._ended_ns.setdefault((pid, start_ticks), steady_clock.now_ns())
        return self.gone(pid, seen_ns)

    def gone(self, pid: int, ended_ns: int | None = None, started_ns: int = 0) -> Process:
        """A process that is no more, with its exit status where its parent has told it."""
        status = self.exits.find(pid, started_ns)
        if status is None:
            return Process(alive=False, ended_ns=ended_ns)
        times = [one for one in (status.time_ns, ended_ns) if one]
        return Process(
            alive=False,
            exit_code=status.code,
            signal=status.signal,
            ended_ns=min(times) if times else None,
        )

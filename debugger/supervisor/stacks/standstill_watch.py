"""Watches for a run in which no rank waits in a call, no process uses a core, and nothing moves.

Such a run says nothing by itself, and no record shows it: the ranks poll a stale lock file, wait
for a service, or one of them has a thread that keeps it from leaving. So the processes are looked
at from outside, as `inspect` does, once all of them have been quiet for a while, and again as long
as they are. Whether that is a fault is for the diagnosis to say (`rules/standstill`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...diagnosis.diagnose import OnFault
from ...diagnosis.limits import SECOND_NS, Limits
from ...record import steady_clock
from ...record.layout import FOR_RANKS, Activity
from ...record.snapshot import Rank, Standstill
from ...system import proc
from ...system.proc import TICKS_PER_S
from ...system.threads import asleep_in
from ..limits import (
    MOVING_BYTES_PER_S,
    STANDSTILL_EVERY_S,
    STANDSTILL_WINDOW_S,
    TRICKLE_BYTES_PER_S,
)
from ..machine.processes import ProcessTable
from .sights import STILL_SHARE, look
from .standing import standstill_of

POLLING = ("TP_", "NCCL Pro")
"""Prefixes of the names of threads that use a core while they wait: TensorPipe's and NCCL's."""
MOST_LOOKED_AT = 64
"""The most ranks of a host that are looked at: py-spy takes 30 ms for each."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """The work that the run had done at one time: what of it differs from the next sample has
    moved."""

    at_s: float
    calls: Mapping[int, tuple[object, ...]]
    used: Mapping[int, tuple[int, int]]
    """By process: the ticks of a core, and the bytes that it has read and written; nothing where
    the ranks' records show that they are at work."""


class StandstillWatch:
    """The watch of one host. What the processes of ranks look like is put into `table`, and taken
    out as soon as anything moves. `descendants` gives the processes of the run; `on_fault` takes
    what fails in a look at them."""

    def __init__(
        self,
        limits: Limits,
        descendants: Callable[[], Sequence[int]],
        table: ProcessTable,
        on_fault: OnFault,
    ) -> None:
        self._notice_s = min(limits.notice_after_s, limits.hang_timeout_s)
        self._descendants = descendants
        self._table = table
        self._on_fault = on_fault
        self._last: _Sample | None = None
        self._quiet_since_ns = steady_clock.now_ns()
        self._looked_s = -STANDSTILL_EVERY_S
        self._looking: threading.Thread | None = None
        self._seen: Mapping[int, Standstill] = {}

    def look(self, ranks: Mapping[int, Rank]) -> None:
        """Looks, once a round of the supervisor. `ranks` are those of the run as of the last
        look."""
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last.at_s < STANDSTILL_WINDOW_S:
            return
        alive = {n: one for n, one in ranks.items() if one.process.alive and not one.node}
        calls = {n: (one.pid, one.calls, one.layer_serial) for n, one in alive.items()}
        # Their records tell of ranks that call, or wait for one another: the kernel, which takes
        # some milliseconds for each rank, is asked only where these show nothing.
        quiet = bool(alive) and self._last is not None and self._last.calls == calls
        quiet = quiet and not any(map(_is_for_others, alive.values()))
        pids = self._descendants() if quiet else ()
        sample = _Sample(now_s, calls, {pid: (_ticks(pid), proc.moved_bytes(pid)) for pid in pids})
        if not quiet or self._last is None or _has_moved(self._last, sample):
            self._quiet_since_ns = steady_clock.now_ns()
            self._seen = {}
        # What was seen in the window before counts once nothing has moved in this one either: a
        # rank may have woken up while it was looked at.
        self._table.standstills = self._seen
        self._last = sample
        busy = self._looking is not None and self._looking.is_alive()
        if self._quiet_s < self._notice_s or now_s - self._looked_s < STANDSTILL_EVERY_S or busy:
            return
        self._looked_s = now_s
        # A thread of its own takes the seconds that this needs; the run is watched meanwhile.
        self._looking = threading.Thread(
            target=self._look, args=(alive, sample), name="distdebug-standstill", daemon=True
        )
        self._looking.start()

    @property
    def _quiet_s(self) -> float:
        return (steady_clock.now_ns() - self._quiet_since_ns) / SECOND_NS

    def _look(self, ranks: Mapping[int, Rank], sample: _Sample) -> None:
        since_ns, quiet_s = self._quiet_since_ns, self._quiet_s
        try:
            seen = _seen(ranks, sample.used, since_ns, quiet_s)
        except Exception as error:
            self._on_fault("the look for a standstill", error)
            return
        if self._quiet_since_ns != since_ns:
            return  # it has moved meanwhile
        if any(_elsewhere(self._seen.get(pid, one), one) for pid, one in seen.items()):
            self._quiet_since_ns = steady_clock.now_ns()  # it goes from place to place, if slowly
            seen = {}
        self._seen = seen


def _seen(
    ranks: Mapping[int, Rank], pids: Collection[int], since_ns: int, quiet_s: float
) -> dict[int, Standstill]:
    """Returns by pid what keeps each of the ranks: beyond `MOST_LOOKED_AT` of them no more is known
    than that they are quiet as well. `pids` are all processes of the run."""
    looked_at = sorted(ranks)[:MOST_LOOKED_AT]
    sights = look([ranks[number].pid for number in looked_at], quiet_s, [])
    found = {number: Standstill(since_ns) for number in ranks}
    for number in looked_at:
        rank = ranks[number]
        found[number] = standstill_of(sights[rank.pid], since_ns, quiet_s, rank.location)
    why = next((f"rank {n} {one.goes_on}" for n, one in found.items() if one.goes_on), "")
    why = why or _served_by(set(pids) - {one.pid for one in ranks.values()})
    return {ranks[number].pid: replace(one, goes_on=why) for number, one in found.items()}


def _ticks(pid: int) -> int:
    """Returns the ticks that the threads of a process have had of a core, but for those that
    poll."""
    folder, found = proc.tasks(pid), 0
    with suppress(OSError):  # it has ended
        for thread in proc.threads(pid):
            stat = proc.read_stat(thread, folder)
            if stat is None or not stat.cpu_ticks:
                continue
            if not proc.name(thread, folder).startswith(POLLING):
                found += stat.cpu_ticks
    return found


def _has_moved(before: _Sample, now: _Sample) -> bool:
    if before.used.keys() != now.used.keys():
        return True
    gap_s = now.at_s - before.at_s
    ranks = {pid for pid, *_ in now.calls.values()}
    return any(
        ticks - before.used[pid][0] > STILL_SHARE * TICKS_PER_S * gap_s
        or moved - before.used[pid][1]
        > (MOVING_BYTES_PER_S if pid in ranks else TRICKLE_BYTES_PER_S) * gap_s
        for pid, (ticks, moved) in now.used.items()
    )


def _is_for_others(rank: Rank) -> bool:
    """Whether it is for another rank, or for a person at its breakpoint, to bring it on."""
    return any(
        wait.activity in FOR_RANKS or wait.activity is Activity.PAUSED for wait in rank.waits
    )


def _elsewhere(before: Standstill, now: Standstill) -> bool:
    """Whether it is in another function than it was."""
    one, other = (
        (found.thread, found.site and (found.site.file, found.site.function))
        for found in (before, now)
    )
    return one != other


def _served_by(pids: Iterable[int]) -> str:
    """Names the Python that is no rank and waits for clients, or for a person: it may hand on to
    the ranks what it hears. (mpiexec and srun listen all the time, to what starts below them.)"""
    for pid in pids:
        if not proc.is_python(pid):
            continue
        asleep = asleep_in(pid, pid)
        if asleep.listens_at:
            return f"process {pid} serves at {asleep.listens_at}"
        if asleep.input:
            return f"process {pid} waits for its input"
    return ""

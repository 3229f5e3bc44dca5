"""Watches for a run in which no rank waits in a call, no process uses a core, and nothing moves.

Such a run says nothing by itself, and no record shows it: the ranks poll a stale lock file, wait
for a service, or one of them has a thread that keeps it from leaving. So the processes are looked
at from outside, as `inspect` does, once all of them have been quiet for a while, and again as long
as they are: what keeps each of them, and whether it may go on. Whether that is a fault is for the
diagnosis to say (`rules/standstill`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from ...diagnosis.diagnose import OnFault
from ...diagnosis.limits import SECOND_NS, Limits
from ...record import steady_clock
from ...record.layout import FOR_RANKS, Activity
from ...record.safe_text import clean
from ...record.secret_words import is_secret, masked
from ...record.snapshot import CallSite, Rank, Standstill
from ...system import proc
from ...system.proc import TICKS_PER_S
from ...system.processes import Tree
from ...system.threads import asleep_in
from ..limits import (
    MOVING_BYTES_PER_S,
    STANDSTILL_EVERY_S,
    STANDSTILL_WINDOW_S,
    TRICKLE_BYTES_PER_S,
)
from ..machine.processes import ProcessTable
from .sights import STILL_SHARE, Sight, Thread, is_a_sleep, look
from .stack_tree import describe, is_own, is_torch, users_frame, waits_for_lock
from .stacks import Frame, ThreadStack

SLEPT_SHARE = 0.9
"""A sleep that has lasted for this share of the quiet is the only one in it, and no loop's."""
_LAST = re.compile(r"/threading\.py:_shutdown$|/multiprocessing/util\.py:_exit_function$")
"""The functions that Python runs at the end of a program. In a child that was forked they stand
above functions of its parent, to which it does not come back."""
_TIMER = re.compile(r"/threading\.py:(?:Timer\.)?run$")
"""A `Thread.run` calls the thread's own function, and waits for nothing."""
_PATH = re.compile(r"""["']((?:/|\./|\w+://)[^"'\s]+|[\w.-]+:\d{2,5})["']""")
_TAKES_ORDERS = re.compile(
    r"/(?:site|dist)-packages/(?:ipykernel|ipyparallel|zmq|ray|grpc|tornado|uvicorn|debugpy)/"
)
"""Packages whose loops wait for requests, and show no listening socket in the thread that does: a
kernel between two cells of a notebook is idle, and so is who waits for an editor to attach. (A
thread in ZeroMQ's C++ polls an event.)"""
MOST_AWAITED, MOST_OTHERS = 3, 3
_MOST_TEXT = 200


def standstill_of(
    sight: Sight, since_ns: int, quiet_s: float, location: CallSite | None = None
) -> Standstill:
    """Returns what keeps a process that has been quiet for that long, since `since_ns`. `location`:
    where the process itself has last said that it stands."""
    main = sight.main
    if sight.wants_core or main is None:
        return Standstill(since_ns, goes_on="computes" if sight.wants_core else "")
    threads = [one.stack for one in sight.threads]
    kept = _keeper(threads, main.stack, location)
    thread = next(one for one in sight.threads if one.stack is kept)
    found = stood(threads, main.stack, since_ns, location)
    return replace(found, awaits=_awaited(thread), goes_on=_goes_on(sight, main, thread, quiet_s))


def stood(
    threads: Sequence[ThreadStack],
    main: ThreadStack,
    since_ns: int = 0,
    location: CallSite | None = None,
) -> Standstill:
    """The same, as far as the stacks of a process show it."""
    kept = _keeper(threads, main, location)
    found = users_frame(_since_the_end(kept))
    site = None
    if found is not None:
        frame, through = found
        site = CallSite(frame.file, frame.line, frame.function, through)
    others = [_place(one) for one in threads if one is not kept and users_frame(one.python_frames)]
    return Standstill(
        since_ns,
        thread="" if kept is main else kept.name,
        site=site,
        call=_called(kept),
        leaving=_is_leaving(main),
        locked=waits_for_lock(kept),
        others=tuple(others[:MOST_OTHERS]),
    )


def _keeper(
    threads: Sequence[ThreadStack], main: ThreadStack, location: CallSite | None
) -> ThreadStack:
    """The thread for which the process stands: the main one, or where that has nothing of the
    program's on its stack any more, the one that it joins: that runs code of the file that joins
    it, as an executor's does, or stands at `location`, or is the first that has. The main one,
    where nobody can tell."""
    leaving = _since_the_end(main)
    if users_frame(leaving):
        return main
    others = [one for one in threads if one is not main and _is_programs(one)]
    joins = next((one.file for one in leaving if not one.file.endswith("/threading.py")), "")
    joined = [one for one in others if any(f.file == joins for f in one.python_frames)] or others
    user = [one for one in joined if users_frame(one.python_frames)]
    plain = [one for one in joined if one not in user]
    if plain and _is_leaving(main) and (location is None or not user):
        # A rank says at which line of the user's the thread stands that it waits for, if at any.
        return plain[0] if len(plain) == 1 else main
    there = (one for one in user if location is not None and _is_at(one, location))
    return next(chain(there, user), main)


def _is_programs(thread: ThreadStack) -> bool:
    """Whether it runs code of the program's, or at least none of this tool's or of torch's."""
    frames = thread.python_frames
    if users_frame(frames):
        return True
    return bool(frames) and not any(is_own(one) or is_torch(one) for one in frames)


def _since_the_end(main: ThreadStack) -> Sequence[Frame]:
    """The functions of Python that the main thread has called since the program's end; where it has
    not come to that, all."""
    frames = main.python_frames
    ends = (n for n, frame in enumerate(frames) if _LAST.search(f"{frame.file}:{frame.function}"))
    return frames[: next(ends, len(frames))]


def _is_at(thread: ThreadStack, site: CallSite) -> bool:
    found = users_frame(thread.python_frames)
    return found is not None and (found[0].file, found[0].line) == (site.file, site.line)


def _is_leaving(main: ThreadStack) -> bool:
    """Whether the program has come to its end, or its outermost function is an exit handler, and
    not a module."""
    frames = main.python_frames
    if not frames or len(_since_the_end(main)) < len(frames):
        return bool(frames)
    return not (frames[-1].function == "<module>" or frames[-1].file.startswith("<frozen"))


def _called(thread: ThreadStack) -> str:
    """Returns what the user's line has called, innermost; "" where it has called nothing of
    Python's."""
    called = (frame for frame in thread.python_frames if not is_own(frame))
    innermost, own = next(called, None), users_frame(thread.python_frames)
    return "" if innermost is None or (own and innermost is own[0]) else describe(innermost)


def _place(thread: ThreadStack) -> str:
    """`thread "Thread-1" in rpc_sync (torch/distributed/rpc/api.py:750), at serve (train.py:14)`"""
    found = users_frame(thread.python_frames)
    assert found is not None
    name = f'thread "{clean(thread.name, 60)}"' if thread.name else "a thread"
    called = _called(thread)
    return f"{name}{f' in {called},' if called else ''} at {describe(found[0])}"


def _awaited(thread: Thread) -> str:
    """Returns what the thread waits for, as the kernel tells; else what it has in hand."""
    if thread.asleep.awaits:
        return f"for {clean(thread.asleep.awaits, _MOST_TEXT)}"
    texts = [clean(one, _MOST_TEXT) for one in masked(in_hand(thread.stack))][:MOST_AWAITED]
    return f"with {', '.join(texts)} in hand" if texts else ""


def in_hand(thread: ThreadStack) -> list[str]:
    """Returns the paths and addresses among the variables of the thread's innermost functions, down
    to the user's."""
    found = []
    own = users_frame(thread.python_frames)
    for frame in thread.python_frames:
        for name, value in frame.values:
            hidden = name.startswith("__") or is_secret(name)
            match = None if hidden else _PATH.fullmatch(value.strip())
            found += [match[1].partition("?")[0]] if match is not None else []
        if own is not None and frame is own[0]:
            break
    return list(dict.fromkeys(found))


def _goes_on(sight: Sight, main: Thread, kept: Thread, quiet_s: float) -> str:
    """Tells why the process may go on by itself, in words behind `rank 0`; "" where nothing is
    seen. `kept`: the thread for which it stands."""
    # Not distcore's listener, which every rank has at DETAIL: nobody but the ranks connects there.
    python = [
        one
        for one in sight.threads
        if one.is_users
        or (one.stack.python_frames and not any(map(is_own, one.stack.python_frames)))
    ]
    serves = next((one.serves for one in python if one.serves), "")
    if serves:
        return f"serves at {serves}"
    if any(one.asleep.input for one in python):
        return "waits for its input"
    taking = any(_TAKES_ORDERS.search(frame.file) for frame in main.stack.python_frames)
    if taking or main.asleep.polls_event:
        return "waits for requests"
    if sight.moves_data or any(one.receives for one in python):
        return "moves data"
    if _is_timer(kept.stack):
        return "sleeps until a time of its own"
    for one in (main, kept):
        if is_a_sleep(one.still_s, one.wakes_in_s) and one.still_s >= SLEPT_SHARE * quiet_s:
            return "sleeps until a time of its own"
    return ""


def _is_timer(thread: ThreadStack) -> bool:
    """Whether it is a `threading.Timer` whose time has not come: to the kernel that is a lock, and
    who waits for that with a limit of time may wait in vain, and try again."""
    calls = [f"{frame.file}:{frame.function}" for frame in thread.python_frames]
    at = next((n for n, call in enumerate(calls) if _TIMER.search(call)), 0)
    return at > 0 and "/threading.py:" in calls[at - 1]


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
    launchers: Collection[int] = ()
    """The processes above ranks."""


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
        # It is for another rank, or for a person at a breakpoint, to bring on one that waits so.
        waits = [wait.activity for rank in alive.values() for wait in rank.waits]
        quiet = quiet and not any(one in FOR_RANKS or one is Activity.PAUSED for one in waits)
        pids = self._descendants() if quiet else ()
        used = {pid: (_ticks(pid), proc.moved_bytes(pid)) for pid in pids}
        tree = Tree() if quiet else None
        above = [tree.above(one.pid) for one in alive.values()] if tree is not None else []
        sample = _Sample(now_s, calls, used, frozenset(chain.from_iterable(above)))
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
    # torchrun serves the store of the ranks, which may poll that: it moves bytes at each question.
    steady = {*now.launchers, *(pid for pid, *_ in now.calls.values())}
    return any(
        ticks - before.used[pid][0] > STILL_SHARE * TICKS_PER_S * gap_s
        or moved - before.used[pid][1]
        > (MOVING_BYTES_PER_S if pid in steady else TRICKLE_BYTES_PER_S) * gap_s
        for pid, (ticks, moved) in now.used.items()
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

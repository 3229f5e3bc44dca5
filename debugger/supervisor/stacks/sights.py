"""Looks at processes from outside, several times: their stacks, and since when they stand still.

Nobody is stopped for it: py-spy reads the memory of a process that runs. How long a thread has
slept is asked of the kernel; where that does not tell, only the time between two looks counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...system.proc import TICKS_PER_S, moved_bytes, read_stat, wanted_core_s
from ...system.processes import Tree
from ...system.threads import Asleep, CoreClocks, asleep_in, slept
from ..limits import A_SLEEP_S, LONGEST_GAP_S, LOOKS_APART_S, MOST_GAP_S, MOVING_BYTES_PER_S
from .stack_tree import users_frame
from .stacks import Frame, ThreadStack, capture

_RECEIVING = (
    "wait_woken",
    "sk_wait_data",
    "unix_stream",
    "sk_stream_wait_memory",
    "poll_schedule_timeout",
    "pipe_read",
)
"""The kernel functions that a thread sleeps in while it waits for data of a socket or a pipe, or
for room to send, without and with a timeout."""
_STOPPED = frozenset("Tt")
STILL_SHARE = 0.05
"""A thread that waits in short slices wakes up now and then, and uses less of a core than this."""
WORKING_SHARE = 0.2
"""A thread at work uses more of a core than this; a loop that polls, less."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread at the last look. `still_s`: so long at least it has stood where it stands, with the
    same values in its frames. `woke`: it has had a core meanwhile, and may have gone round.
    `serves`: the address at which it waits, or has just waited, for somebody to connect: a server
    that is idle. `receives`: data comes to it, or goes, by a socket or a pipe, however little."""

    stack: ThreadStack
    still_s: float
    running: bool
    woke: bool = False
    serves: str = ""
    receives: bool = False
    asleep: Asleep = field(default_factory=Asleep)

    @property
    def wakes_in_s(self) -> float | None:
        """The seconds until the time that it has set itself; None where it has set none."""
        return self.asleep.wakes_in_s

    @property
    def is_users(self) -> bool:
        """Whether code of the user's is on its stack."""
        return users_frame(self.stack.python_frames) is not None


@dataclass(frozen=True, slots=True)
class Sight:
    """A process at the last look. `state` is the kernel's letter, "" when it has gone.
    `moves_data`: it reads or writes files, or pipes, as one does that saves or loads, or waits for
    a disk; or its main thread receives. `at_work`: those that it has started compute or move data
    (workers of its data loader, a compiler, `tar`), or it computes itself and does not stand at one
    place. `uses_core`: its threads together use more of one than a loop that polls. `wants_core`:
    its main thread had one, or waited for one, at the first look and at the last: on a crowded
    machine one that computes may get little of it. `serves`: as its main thread does."""

    pid: int
    state: str
    threads: Sequence[Thread]
    moves_data: bool = False
    at_work: bool = False
    uses_core: bool = False
    wants_core: bool = False
    serves: str = ""

    @property
    def stopped(self) -> bool:
        return self.state in _STOPPED

    @property
    def main(self) -> Thread | None:
        """The thread that the process began with. It may have another name: a child that a thread
        has forked keeps that thread's; of some Pythons, only the name is known."""
        by_id = (one for one in self.threads if one.stack.native_id == self.pid)
        named = (one for one in self.threads if one.stack.name == "MainThread")
        return next(by_id, None) or next(named, None)


def look(
    pids: Iterable[int], needed_s: float, problems: list[str], native: bool = False
) -> dict[int, Sight]:
    """Looks at these processes at least twice, and returns what they do. `needed_s`: once every
    thread that stands still is known to have done so for that long, or none to have, no further
    look is needed."""
    wanted, clocks = list(pids), CoreClocks()
    first, began_s = _take(wanted, problems, native, clocks), time.monotonic()
    time.sleep(LOOKS_APART_S)
    second = _take(wanted, [], native, clocks)
    sights = _compared(first, began_s, second)
    told = any(one.slept_s for one in second.values())
    if _further_look_helps(sights.values(), needed_s, told):
        gap_s = MOST_GAP_S if told or needed_s > LONGEST_GAP_S else max(MOST_GAP_S, needed_s + 0.2)
        time.sleep(max(0.0, began_s + gap_s - time.monotonic()))
        sights = _compared(first, began_s, _take(wanted, [], native, clocks))
    return sights


def _further_look_helps(sights: Iterable[Sight], needed_s: float, told: bool) -> bool:
    """Whether a second more would tell more of who stands still.

    Only threads that may be a rank's count: a pool's thread wakes up now and then whatever its rank
    does. Where the kernel tells how long each has slept, and none has for as long as is needed, a
    second more changes nothing: that is a job at work. `told`: it does. But where all stand still
    and one has woken up meanwhile, they may wait in slices, or on a core. And where those below one
    that stands still seem to work, they may poll: on a crowded machine the start of one `sleep` had
    to wait for a core for a quarter of the time between two looks, and for 6 % of a second.
    """
    sights = list(sights)
    if any(one.at_work and one.main is not None and one.main.still_s for one in sights):
        return True
    standing = [
        one
        for sight in sights
        for one in sight.threads
        if one.still_s and (one is sight.main or (not one.running and one.is_users))
    ]
    enough = any(one.still_s >= needed_s and not one.running for one in standing)
    mains = [sight.main for sight in sights if sight.state]
    all_still = all(one is not None and one.still_s for one in mains)
    all_still = all_still and any(one is not None and one.woke for one in mains)
    return any(one.still_s < needed_s for one in standing) and (
        enough or not told or needed_s <= MOST_GAP_S or all_still
    )


class _Below(NamedTuple):
    """The work of one process below: for how long it has wanted a core so far, what it has moved,
    whether it has a core now, or waits for one, and for how long it has had one."""

    wanted_s: float
    moved_bytes: int
    running: bool
    used_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Taken:
    """A process at one moment."""

    state: str
    cpu_s: float
    threads: Sequence[ThreadStack]
    slept_s: Mapping[int, float]
    """By native id: how long ago the thread last got a core, where the kernel tells."""
    moved_bytes: int = 0
    """The bytes that it has read and written since it began, where the kernel tells."""
    below: Mapping[int, _Below] = field(default_factory=dict)
    """The processes below it that are none of those that are looked at."""
    asleep: Mapping[int, Asleep] = field(default_factory=dict)
    """By native id: what each thread waits for."""


def _take(
    pids: Sequence[int], problems: list[str], native: bool, clocks: CoreClocks
) -> dict[int, _Taken]:
    slept_s = {pid: slept(pid, clocks) for pid in pids}  # before anything disturbs them
    below = _below(pids)
    stacks = capture(pids, native=native, problems=problems, values=True)
    taken = {}
    for pid in pids:
        stat = read_stat(pid)
        if stat is None or stat.state in "ZX":
            taken[pid] = _Taken("", 0.0, (), {})
        else:
            cpu_s = stat.cpu_ticks / TICKS_PER_S
            threads = {pid, *(one.native_id for one in stacks[pid] if one.native_id)}
            taken[pid] = _Taken(
                stat.state,
                cpu_s,
                stacks[pid],
                slept_s[pid],
                moved_bytes(pid),
                below[pid],
                {one: _sleeps_in(pid, one, slept_s[pid], clocks) for one in threads},
            )
    return taken


def _sleeps_in(
    pid: int, thread: int, slept_s: Mapping[int, float], clocks: CoreClocks, deeper: int = 2
) -> Asleep:
    """Returns what the thread waits for. A thread that waits for a child that sleeps until a time
    of its own (a shell that runs `sleep 20`) wakes up then; a child that polls tells nothing."""
    slept_for_s = slept_s.get(thread, 0.0)
    found = asleep_in(pid, thread, slept_for_s)
    if found.child and deeper:
        childs = slept(found.child, clocks)
        wakes_in_s = _sleeps_in(found.child, found.child, childs, clocks, deeper - 1).wakes_in_s
        if is_a_sleep(childs.get(found.child, 0.0), wakes_in_s):
            return replace(found, wakes_in_s=wakes_in_s)
    return found


def is_a_sleep(slept_s: float, wakes_in_s: float | None) -> bool:
    """Whether it is one, and not a pause of somebody who polls."""
    return wakes_in_s is not None and slept_s + wakes_in_s >= A_SLEEP_S


def _compared(
    first: Mapping[int, _Taken], began_s: float, last: Mapping[int, _Taken]
) -> dict[int, Sight]:
    gap_s = time.monotonic() - began_s
    found = {}
    for pid, one in last.items():
        before = {stack.thread_id: stack for stack in first[pid].threads}
        used = max(0.0, one.cpu_s - first[pid].cpu_s) / gap_s if one.state else 0.0
        threads = [
            replace(
                _thread(stack, before.get(stack.thread_id), one, gap_s, used),
                serves=_serves_at(stack.native_id, one, first[pid]),
                receives=_receives(stack, one, gap_s),
                # Of some Pythons only the name of the main thread is known.
                asleep=one.asleep.get(
                    stack.native_id or (pid if stack.name == "MainThread" else 0), Asleep()
                ),
            )
            for stack in one.threads
        ]
        moved = one.moved_bytes - first[pid].moved_bytes
        both = {one.state, first[pid].state}
        # Who looks at a rank, or traces it, stops it for a moment.
        state = one.state if one.state not in _STOPPED or both <= _STOPPED else first[pid].state
        sight = Sight(pid, state, threads, moved >= MOVING_BYTES_PER_S * gap_s or both == {"D"})
        main = sight.main
        moves_on = main is not None and not main.still_s and used >= WORKING_SHARE
        found[pid] = replace(
            sight,
            moves_data=sight.moves_data or (main is not None and main.receives),
            at_work=moves_on or _others_work(first[pid], one, gap_s),
            uses_core=used >= WORKING_SHARE,
            wants_core=both == {"R"},
            serves=_serves_at(pid, one, first[pid]),
        )
    return found


def _serves_at(thread: int, *taken: _Taken) -> str:
    """The address at which it waited for somebody to connect, when it was last seen to."""
    listening = (one.asleep[thread].listens_at for one in taken if thread in one.asleep)
    return next(filter(None, listening), "")


def _receives(stack: ThreadStack, taken: _Taken, gap_s: float) -> bool:
    """Whether it waits for data, and some has come a moment ago: a download, or a child that tells
    of its progress, goes on, unlike one that has come to a standstill."""
    slept_s = taken.slept_s.get(stack.native_id, math.inf)
    if taken.asleep.get(stack.native_id, Asleep()).wakes_in_s is not None:
        return False  # `time.sleep` of a Python before 3.11: a `select` of no files
    return slept_s < max(gap_s, MOST_GAP_S) and any(word in stack.wait for word in _RECEIVING)


def _others_work(first: _Taken, last: _Taken, gap_s: float) -> bool:
    """Whether those below it do. Of one that has come since, all that it has done counts. On a host
    with too few cores one that wants to work may have got little of one; but one that has come and
    sleeps has waited for a core to start, which took a third of a second."""
    wanted_s, moved, wants = 0.0, 0, False
    for pid, now in last.below.items():
        before = first.below.get(pid, _Below(0.0, 0, running=False))
        started = pid not in first.below and not now.running
        wanted_s += now.used_s if started else max(0.0, now.wanted_s - before.wanted_s)
        moved += max(0, now.moved_bytes - before.moved_bytes)
        wants = wants or (now.running and before.running)
    return wants or wanted_s >= WORKING_SHARE * gap_s or moved >= MOVING_BYTES_PER_S * gap_s


def _thread(
    stack: ThreadStack, before: ThreadStack | None, taken: _Taken, gap_s: float, used: float
) -> Thread:
    running = taken.state not in _STOPPED and (stack.active or stack.holds_gil)
    if before is None or _place(before) != _place(stack):
        return Thread(stack, 0.0, running)
    slept_s = taken.slept_s.get(stack.native_id, 0.0)
    woke = running or slept_s < gap_s
    if not running and used > STILL_SHARE:
        # It may have gone round between the looks; while it has slept it has not.
        return Thread(stack, slept_s, running, woke)
    if taken.slept_s:
        # A thread that wakes up was seen at its place twice, which says no more when it took long.
        gap_s = min(gap_s, MOST_GAP_S)
    return Thread(stack, gap_s if running else max(gap_s, slept_s), running, woke)


def _place(stack: ThreadStack) -> tuple[tuple[Frame, tuple[tuple[str, str], ...]], ...]:
    return tuple((frame, frame.values) for frame in stack.frames)


def _below(pids: Sequence[int]) -> dict[int, dict[int, _Below]]:
    """Returns by process those below it, without these processes themselves and what they
    started."""
    tree = Tree()
    found: dict[int, dict[int, _Below]] = {pid: {} for pid in pids}
    for pid in tree.below(*pids):
        nearest = next((one for one in tree.above(pid) if one in found), None)
        if nearest is not None and pid not in found:
            stat = tree.stats[pid]
            wanted_s, used_s = wanted_core_s(pid, stat), stat.cpu_ticks / TICKS_PER_S
            found[nearest][pid] = _Below(wanted_s, moved_bytes(pid), stat.state == "R", used_s)
    return found

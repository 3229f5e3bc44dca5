"""Finds the process that a rank has started and waits for, and where that one stands.

The rank's stack shows that it waits for a process, and not for which. It is taken to be the newest
one below it that is in code of the user's, or that is no Python: idle workers, and the helpers of
multiprocessing, are in code of Python's own and torch's.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import takewhile

from ...record.exits import ExitStatus
from ...record.safe_text import clean
from ...system import proc
from ...system.processes import Tree
from ..limits import CHILDREN_S
from . import stack_tree
from .stacks import ThreadStack, capture

MOST_CHILDREN = 8
_WAITS_IN = re.compile(
    r"/(?:subprocess|multiprocessing/\w+|concurrent/futures/process|torch/utils/data/dataloader)\.py$"
)
_BEGINS_IN = re.compile(r"/multiprocessing/process\.py$")
_KERNEL_WAITS = ("do_wait", "pipe_read")


def awaited_child(
    pid: int, threads: Sequence[ThreadStack], ranks: Container[int]
) -> tuple[str, Sequence[str]] | None:
    """The process for which the main thread of rank process `pid` waits: `its child 4711 (name)`,
    and its stack, innermost call first. `ranks`: the pids of all ranks, which are nobody's."""
    main = stack_tree.main_of(threads)
    if main is None or not _waits_for_process(main, threads):
        return None
    tree = Tree()
    below = [one for one in tree.below(pid) if one not in ranks]
    below = sorted(below, key=lambda one: tree.stats[one].start_ticks)[-MOST_CHILDREN:]
    stacks = capture(below, timeout_s=CHILDREN_S)
    for one in reversed(below):
        stands = _stands_at(one, stacks[one])
        if stands:
            return f"its child {one} ({clean(proc.name(one), 80)})", stands
    return None


def dead_children(pid: int, threads: Sequence[ThreadStack]) -> list[str]:
    """The children of process `pid` that have failed and that it has not asked about since, though
    its main thread waits for processes: `its child 4711 (name) has ended (SIGKILL)`. Who reads the
    queue of one that was killed waits for ever."""
    main, found = stack_tree.main_of(threads), []
    if main is not None and _waits_for_process(main, threads):
        tree = Tree()
        for one in tree.children.get(pid, ()):
            stat = tree.stats[one]
            if stat.state == "Z" and stat.wait_status:
                ended = ExitStatus.from_wait(stat.wait_status)
                found.append(f"its child {one} ({clean(proc.name(one), 80)}) has ended ({ended})")
    return found[-MOST_CHILDREN:]


def _stands_at(pid: int, threads: Sequence[ThreadStack]) -> Sequence[str]:
    """The frames of the main thread, innermost first; none where it has nothing to do. A child that
    a thread has forked keeps that thread's name. What a fork has copied of the parent's stack is
    not its own."""
    main = next((one for one in threads if one.native_id == pid), stack_tree.main_of(threads))
    if main is None:
        return ()
    own = tuple(takewhile(lambda frame: not _BEGINS_IN.search(frame.file), main.frames))
    busy = main.source == "proc" or stack_tree.users_frame(own)
    return stack_tree.lines_of(replace(main, frames=own)) if busy else ()


def _waits_for_process(main: ThreadStack, threads: Sequence[ThreadStack]) -> bool:
    """Whether the thread sleeps in a call of the user's that waits for processes. A future's may be
    computed by threads: then no thread of this process serves an executor of processes."""
    if main.active:
        return False
    called = stack_tree.called_by_user(main)
    if any(frame.file.endswith("/concurrent/futures/_base.py") for frame in called):
        called = [frame for thread in threads for frame in thread.frames]
    waits = any(_WAITS_IN.search(frame.file) for frame in called)
    return waits or (not called and any(word in main.wait for word in _KERNEL_WAITS))

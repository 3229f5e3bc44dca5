"""Asks `faulthandler` in a rank, by a signal, to write its stacks into the run directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...system import proc
from .supervision import STACK_SIGNAL, dump_path

_THREAD_LINE = re.compile(r"(Current thread|Thread) 0x([0-9a-f]+)(?: \[([^]]*)\])? \(most recent")
_FRAME_LINE = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_SETTLED_S = 0.05


def ask(stacks: Path, pid: int, limit_s: float) -> str:
    """Returns what the process has written within that time; "" where it does not answer, or
    cannot.

    Blocks for `limit_s` at most; within that it waits for the end of what the process writes, in
    which it may be given no core for a while. A process without a handler is not asked: the signal
    would end it. Nor is one that has closed our file: its number may be that of a file of the
    program's by now.
    """
    path = dump_path(stacks, pid)
    try:
        catches = proc.has_signal(proc.read_status(pid), "SigCgt", STACK_SIGNAL)
        if not (catches and _has_open(pid, path)):
            return ""
        before = path.stat().st_size
        _, deaf = _waits_or_blocked(pid)
        os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + limit_s
        size, settled_s = before, 0.0
        while time.monotonic() < deadline and (
            size == before or settled_s < _SETTLED_S or _is_at_it(pid, deaf)
        ):
            time.sleep(_SETTLED_S / 5)
            now = path.stat().st_size
            settled_s = settled_s + _SETTLED_S / 5 if now == size else 0.0
            size = now
        with path.open("rb") as file:
            file.seek(before)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """`frames`: (file, line or 0, function), innermost first. `main`: it is no thread that Python
    started."""

    ident: int
    name: str
    frames: tuple[tuple[str, int, str], ...]
    main: bool


def threads(text: str) -> Iterator[DumpedThread]:
    """The threads in a dump."""
    for part in re.split(r"^(?=Current thread |Thread )", text, flags=re.MULTILINE):
        head = _THREAD_LINE.match(part)
        if head is None:
            continue
        frames = tuple(
            (file, int(line) if line.isdigit() else 0, function)
            for file, line, function in _FRAME_LINE.findall(part)
        )
        main = bool(frames) and frames[-1][2].rpartition(".")[2] != "_bootstrap"
        yield DumpedThread(int(head[2], 16), head[3] or "", frames, main)


def _is_at_it(pid: int, deaf: frozenset[int]) -> bool:
    """Whether the signal is yet to be heard, or a thread is still in its handler: meanwhile it is
    blocked there, as it is for good in those that are `deaf` to it."""
    try:
        waits, blocked = _waits_or_blocked(pid)
    except OSError:  # it has gone
        return False
    return waits or not blocked <= deaf


def _waits_or_blocked(pid: int) -> tuple[bool, frozenset[int]]:
    """Whether the signal waits to be heard by a thread, and the threads that have it blocked."""
    waits, blocked = False, set()
    for thread in proc.threads(pid):
        status = proc.read_status(thread, proc.tasks(pid))  # nothing of one that has just ended
        masks = ("SigPnd", "ShdPnd")
        waits = waits or any(proc.has_signal(status, one, STACK_SIGNAL) for one in masks)
        if proc.has_signal(status, "SigBlk", STACK_SIGNAL):
            blocked.add(thread)
    return waits, frozenset(blocked)


def _has_open(pid: int, path: Path) -> bool:
    ours = path.stat()
    for number, _ in proc.open_files(pid):
        with contextlib.suppress(OSError):  # closed just now
            found = os.stat(proc.path_of(number, pid))
            if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                return True
    return False

"""Tells of a thread that sleeps since when it does, and what it waits for: a client that connects
(a server that is idle), a person at a terminal, a file, a peer on the network, or a time.

The system call that it sleeps in, its arguments and the file descriptors behind them are what the
kernel tells of a process to who may trace it. Nothing is written, and the thread sleeps on.

Linux notes when it last gave a thread a core, by that core's clock (`se.exec_start` of `sched`).
The cores' clocks are not one: each leaves out the time that interrupts took from it, and that other
guests of a virtual machine's host took, so that after a busy day they are seconds apart. A time is
therefore compared with the clock of the core that the thread was on.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .proc import PROC, read_stat, tasks, threads
from .sockets import connected_to, inode_of, listening

_CALLS = {
    "x86_64": {
        **dict.fromkeys((43, 288), "accept"),
        **dict.fromkeys((0, 17, 42, 45, 47, 72, 73), "file"),
        **dict.fromkeys((232, 281, 441), "epoll"),
        **dict.fromkeys((7, 271), "poll"),
        23: "select",
        270: "pselect",
        35: "nanosleep",
        230: "clock_nanosleep",
        61: "wait4",
        247: "waitid",
        202: "futex",
    },
    "aarch64": {
        **dict.fromkeys((202, 242), "accept"),
        **dict.fromkeys((63, 67, 203, 207, 212, 25, 32), "file"),
        **dict.fromkeys((22, 441), "epoll"),
        73: "poll",
        72: "pselect",
        101: "nanosleep",
        115: "clock_nanosleep",
        260: "wait4",
        95: "waitid",
        98: "futex",
    },
    "riscv64": {98: "futex"},
    "ppc64le": {221: "futex"},
    "s390x": {238: "futex"},
}
"""The numbers of Linux's system calls that wait for files, a time, the end of a child, or a lock.
"file" are those whose first argument is the one file that they wait for: read, pread64, connect,
recvfrom, recvmsg, fcntl and flock."""
_P_PID = 1
"""Asks `waitid` for one child."""
_EPOLLED = re.compile(r"^tfd:\s+(\d+)", re.M)
_TERMINALS = ("/dev/tty", "/dev/pts/", "/dev/console")
_MOST_FILES = 1024
_MOST_PIDS = 1 << 22
_LONGEST_MS = (1 << 31) - 1
_ABSOLUTE = 1
"""The flag of clock_nanosleep that gives the time at which it ends."""


_FILE_LOCK = re.compile(r"^\d+: *(->)? *\w+ +\w+ +\w+ +(-?\d+) (\S+)", re.M)


@dataclass(frozen=True, slots=True)
class Asleep:
    """The event that a thread waits for. `listens_at`: the address at which somebody may connect,
    `host:port` or a path, "" where it does not wait for that. `wakes_in_s`: None where it has set
    itself no time. `child`: the process whose end it waits for, 0 where it waits for none, or for
    several. `awaits`: the path, or the address of the peer, of the first file that it waits for.
    `input`: it waits for what a person, or whoever else feeds the program, puts into its standard
    input. `polls_event`: for an event of another thread, as who waits for a message of ZeroMQ's
    does."""

    listens_at: str = ""
    wakes_in_s: float | None = None
    child: int = 0
    awaits: str = ""
    input: bool = False
    polls_event: bool = False


def system_call(thread: int, folder: Path) -> tuple[str, list[int]]:
    """The system call that a thread sleeps in, by its name in `_CALLS`, or as `syscall 7`, and its
    arguments; "" of a thread that runs. `folder`: see `proc.tasks`. Raises OSError, ValueError."""
    number, *words = (folder / str(thread) / "syscall").read_text().split()
    if not number.isdigit():
        return "", []
    call = _CALLS.get(platform.machine(), {}).get(int(number), f"syscall {number}")
    return call, [int(word, 16) for word in words]


def kernel_wait(pid: int, thread: int) -> str:
    """The kernel function that a thread sleeps in, e.g. `futex_do_wait`, or else its system call;
    "" when it does not sleep."""
    folder = tasks(pid)
    try:
        wait = (folder / str(thread) / "wchan").read_text().strip()
    except OSError:
        wait = ""
    if wait not in ("", "0"):
        return wait
    with suppress(OSError, ValueError):
        return system_call(thread, folder)[0]
    return ""


def is_in_lock(thread: int) -> bool:
    """Whether a thread of this process stands in a lock (a futex) without a limit of time."""
    with suppress(OSError, ValueError, IndexError):
        call, given = system_call(thread, tasks())
        return call == "futex" and given[3] == 0
    return False


def asleep_in(pid: int, thread: int, slept_s: float = 0.0, proc: Path = PROC) -> Asleep:
    """The same as nothing where the thread does not sleep, or nobody tells. `slept_s`: for so long
    it has slept, from which a time counts that is not given by the clock."""
    try:
        call, given = system_call(thread, tasks(pid, proc))
        if call in ("wait4", "waitid"):
            return Asleep(child=_child(tasks(pid, proc) / str(thread), call, given))
        numbers = list(_files(proc / str(pid), call, given))
        files = [os.readlink(proc / str(pid) / "fd" / str(file)) for file in numbers]
        inodes = [inode for one in files if (inode := inode_of(one))]
        if inodes:
            at = next(iter(listening(pid, inodes, proc)), "")
            awaits = next(iter(connected_to(pid, inodes, proc)), "")
            # An event loop that waits for nothing but its next timer listens to itself, for signals
            # and other threads.
            alone = call == "epoll" and len(files) == 1 and not (at or awaits)
            wakes_in_s = _left_s(proc / str(pid), call, given, slept_s) if alone else None
            return Asleep(at, wakes_in_s, awaits=awaits)
        if files:
            terminal = any(one.startswith(_TERMINALS) for one in files)
            # A pipe or an event of its own has no name that a person knows.
            awaits = next((one for one in files if one.startswith("/")), "")
            event = call == "poll" and any("[eventfd]" in one for one in files)
            return Asleep(awaits=awaits, input=terminal or 0 in numbers, polls_event=event)
        return Asleep(wakes_in_s=_left_s(proc / str(pid), call, given, slept_s))
    except (OSError, ValueError, IndexError, OverflowError, struct.error):
        return Asleep()


def lock_holders(proc: Path = PROC) -> dict[int, int]:
    """Returns by process that waits for the lock on a file the process that holds it, as far as the
    kernel tells."""
    found, holder = {}, 0
    with suppress(OSError):
        for waits, pid, _ in _FILE_LOCK.findall((proc / "locks").read_text()):
            if waits:
                found[int(pid)] = holder
            else:
                holder = int(pid)
    return found


def lock_holder(path: str, proc: Path = PROC) -> int:
    """Returns the process that holds a lock on the file; 0 where none does, or nobody tells."""
    with suppress(OSError):
        stat = os.stat(path)
        file = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
        for waits, pid, locked in _FILE_LOCK.findall((proc / "locks").read_text()):
            if locked == file and not waits:
                return max(0, int(pid))
    return 0


def _files(process: Path, call: str, given: list[int]) -> Iterable[int]:
    """The file descriptors that it waits for."""
    match call:
        case "accept" | "file":
            return given[:1]
        case "epoll":
            return map(int, _EPOLLED.findall((process / "fdinfo" / str(given[0])).read_text()))
        case "poll":
            polled = _memory(process, given[0], 8 * min(given[1], _MOST_FILES))
            return [file for file, _ in struct.iter_unpack("=iI", polled)]
        case "select" | "pselect" if given[1]:
            size = (min(given[0], _MOST_FILES) + 7) // 8
            bits = int.from_bytes(_memory(process, given[1], size), "little")
            return [file for file in range(bits.bit_length()) if bits >> file & 1]
    return []


def _child(task: Path, call: str, given: list[int]) -> int:
    """The one that it asks for, or the only one that it has."""
    wanted = given[0] if call == "wait4" else given[1] if given[0] == _P_PID else 0
    if 0 < wanted <= _MOST_PIDS:
        return wanted
    there = [int(word) for word in (task / "children").read_text().split()]
    return there[0] if len(there) == 1 else 0


def _left_s(process: Path, call: str, given: list[int], slept_s: float) -> float | None:
    """Returns the seconds until it wakes up by itself, where it waits for nothing else, or for its
    own files alone."""
    if call == "clock_nanosleep":
        until_s = _seconds(process, given[2], 1e9)
        is_absolute = given[1] & _ABSOLUTE
        return max(0.0, until_s - (time.clock_gettime(given[0]) if is_absolute else slept_s))
    if call == "nanosleep":
        return max(0.0, _seconds(process, given[0], 1e9) - slept_s)
    if call == "epoll":  # in ms; -1 is no limit
        return max(0.0, given[3] / 1e3 - slept_s) if given[3] <= _LONGEST_MS else None
    # `time.sleep` of a Python before 3.11: no files, and a time.
    if call in ("select", "pselect") and given[4] and not any(given[1:4]):
        unit = 1e6 if call == "select" else 1e9
        return max(0.0, _seconds(process, given[4], unit) - slept_s)
    return None


def _seconds(process: Path, address: int, unit: float) -> float:
    """A `timespec`, or a `timeval`, of the process."""
    seconds, parts = struct.unpack("=qq", _memory(process, address, 16))
    return float(seconds) + float(parts) / unit


def _memory(process: Path, address: int, size: int) -> bytes:
    with open(process / "mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


class CoreClocks:
    """The clocks of this host's cores, each read once, when it is first asked for."""

    def __init__(self) -> None:
        self._ahead_ms: dict[int, float | None] = {}

    def now_ms(self, core: int) -> float | None:
        """None where the kernel does not tell, or this process may not run on that core."""
        if core not in self._ahead_ms:
            self._ahead_ms[core] = _ahead_ms(core)
        ahead_ms = self._ahead_ms[core]
        return None if ahead_ms is None else time.monotonic() * 1000 + ahead_ms


def slept(pid: int, clocks: CoreClocks) -> dict[int, float]:
    """Seconds by native id, of the threads of which it is known. About 40 µs each, and 0.1 ms once
    for each core."""
    try:
        found = {one: _slept_s(tasks(pid), one, clocks) for one in threads(pid)}
    except OSError:
        return {}
    return {thread: slept_s for thread, slept_s in found.items() if slept_s is not None}


def last_scheduled_ms(task: Path) -> float | None:
    """None where it is not told, and of a thread that was woken up on another core and waits for
    that: the kernel has 0 until it runs there, and not when it last ran."""
    try:
        with open(task / "sched") as file:
            for line in file:
                if line.startswith("se.exec_start"):
                    return float(line.rpartition(":")[2]) or None
    except (OSError, ValueError):
        pass
    return None


def _slept_s(folder: Path, thread: int, clocks: CoreClocks) -> float | None:
    before = read_stat(thread, folder)
    at_ms = last_scheduled_ms(folder / str(thread))
    after = read_stat(thread, folder)
    if before is None or after is None or at_ms is None:
        return None
    if before.core != after.core:
        return 0.0  # it has moved just now: which core's time this is, nobody knows
    now_ms = clocks.now_ms(after.core)
    return None if now_ms is None else max(0.0, now_ms - at_ms) / 1000


def _ahead_ms(core: int) -> float | None:
    """Returns by how much the core's clock is ahead of the clock that all cores share. It is read
    on the core itself: this thread goes there."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        return None
    try:
        now_ms = last_scheduled_ms(PROC / "thread-self")
        return None if now_ms is None else now_ms - time.monotonic() * 1000
    finally:
        os.sched_setaffinity(0, allowed)

"""Reads what Linux keeps in /proc of a process and of its threads.

Every function takes a pid, or "self". A thread has the same files as a process, in the folder of
its process's threads: `read_stat(thread, tasks(pid))`. `proc` is where they are.

Ranks read it, and the processes that every run starts: so it imports neither `dataclasses` nor
`typing`, which cost the smallest of them more than all else that they do.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
DEAD_STATES = "ZXx"
_TORCH = (b"libtorch_cpu", b"libtorch_python")
_MOST_BYTES = 1 << 20


class Stat:
    """The fields of a process's or thread's `stat` that this tool needs."""

    __slots__ = (
        *("state", "parent", "cpu_ticks", "threads", "start_ticks", "rss_bytes", "core"),
        "wait_status",
    )

    def __init__(self, text: bytes) -> None:
        """Raises ValueError or IndexError where this is none."""
        fields = text[text.rindex(b")") + 2 :].split()
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.cpu_ticks = int(fields[11]) + int(fields[12])
        self.threads = int(fields[17])
        self.start_ticks = int(fields[19])
        self.rss_bytes = int(fields[21]) * PAGE_BYTES
        self.core = int(fields[36])
        """The one that it is on, or was on last."""
        self.wait_status = int(fields[49]) if len(fields) > 49 else 0
        """The wait status of a zombie: how it ended, as `os.waitpid` would tell; 0 also when it is
        not ours to know."""


def tasks(pid: int | str = "self", proc: Path = PROC) -> Path:
    """The folder that has the files of the threads of a process."""
    return proc / str(pid) / "task"


def threads(pid: int | str = "self", proc: Path = PROC) -> list[int]:
    """The native ids of the threads of a process. Raises OSError."""
    return sorted(map(int, os.listdir(tasks(pid, proc))))


def exists(pid: int | str) -> bool:
    """Whether there is such a process, be it a zombie."""
    return os.path.exists(PROC / str(pid))


def owner(pid: int, proc: Path = PROC) -> int:
    """The user of a process. Raises OSError."""
    return os.stat(proc / str(pid)).st_uid


def read_stat(pid: int | str, proc: Path = PROC) -> Stat | None:
    """None when there is no such process, or it cannot be read. About 15 µs."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            return Stat(file.read(2048))
    except (OSError, ValueError, IndexError):
        return None


def age_s(start_ticks: int) -> float:
    """Returns for how long there is a process that began then (`Stat.start_ticks`), in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS_PER_S


def wanted_core_s(pid: int, stat: Stat, proc: Path = PROC) -> float:
    """Returns for how long it has had a core, and its main thread has waited for one, where the
    kernel counts that: a process at work wants one all the time, however seldom a crowded machine
    has one."""
    waited_ns = "0"
    with suppress(OSError, ValueError):
        _, waited_ns, _ = (proc / str(pid) / "schedstat").read_text().split()
    return stat.cpu_ticks / TICKS_PER_S + int(waited_ns) / 1e9


def moved_bytes(pid: int) -> int:
    """Returns the bytes that `read` and `write` have moved, or that came of files that are mapped:
    0 where that is not told."""
    try:
        with open(PROC / str(pid) / "io") as file:
            counted = dict(line.split(": ") for line in file if ": " in line)
        called = int(counted["rchar"]) + int(counted["wchar"])
        return max(called, int(counted["read_bytes"]) + int(counted["write_bytes"]))
    except (OSError, ValueError, KeyError):
        return 0


def read_status(pid: int | str = "self", proc: Path = PROC) -> dict[str, str]:
    """Returns the status of a process or thread, by name; nothing when there is no such one, or it
    cannot be read."""
    try:
        # Its name may be any bytes, cut in the middle of a character.
        lines = (proc / str(pid) / "status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def has_signal(status: Mapping[str, str], mask: str, number: int) -> bool:
    """Whether this signal is in a mask of a status, such as SigCgt."""
    return bool(int(status.get(mask, "0"), 16) >> (number - 1) & 1)


def times_slept(thread: int, folder: Path | None = None) -> int | None:
    """Returns how often a thread of this process has given up or lost the CPU, where it sleeps.
    None where it runs, or would if it got a core: on a crowded machine that takes long, and is no
    wait for anything. None also where nobody can tell."""
    status = read_status(thread, tasks() if folder is None else folder)
    if not status.get("State", "").startswith("S"):
        return None
    return sum(int(text) for name, text in status.items() if name.endswith("ctxt_switches"))


def name(pid: int | str, proc: Path = PROC) -> str:
    """The name that the kernel has of a process or thread; "" where it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def environment(pid: int | str, proc: Path = PROC) -> dict[str, str]:
    """The environment that a process was started with; that of a zombie is empty. Raises OSError
    where it is another user's."""
    pairs = (os.fsdecode(one).partition("=") for one in _words(proc / str(pid) / "environ"))
    return {name: value for name, sign, value in pairs if sign}


def command_line(pid: int | str, proc: Path = PROC) -> list[str]:
    """The words that a process was started with; none of a zombie. Raises OSError."""
    return [os.fsdecode(word) for word in _words(proc / str(pid) / "cmdline")]


def _words(path: Path) -> list[bytes]:
    with open(path, "rb") as file:
        text = file.read(_MOST_BYTES)
    return text.rstrip(b"\0").split(b"\0") if text else []


def executable(pid: int | str, proc: Path = PROC) -> str:
    """The path of the program that a process runs; "" where that is not told."""
    try:
        return os.readlink(proc / str(pid) / "exe")
    except OSError:
        return ""


def is_python(pid: int | str, proc: Path = PROC) -> bool:
    """Whether the program is called like an interpreter of Python, such as `python3.12`."""
    program = os.path.basename(executable(pid, proc))
    return "python" in program or "pypy" in program


def mapped(pid: int | str, proc: Path = PROC) -> list[str]:
    """The lines of its table of memory. Raises OSError."""
    return (proc / str(pid) / "maps").read_text(errors="replace").splitlines()


def check_traceable(pid: int, proc: Path = PROC) -> None:
    """Raises PermissionError where this process may not trace that one."""
    with open(proc / str(pid) / "mem", "rb"):
        pass  # the kernel asks for that right


def has_torch(pid: int, proc: Path = PROC) -> bool:
    """Whether the process has torch's library mapped. About a millisecond."""
    try:
        with open(proc / str(pid) / "maps", "rb") as file:
            return any(one in line for line in file for one in _TORCH)
    except OSError:
        return False


def open_files(pid: int | str = "self", proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """The descriptors of a process, each with the path, or `socket:[inode]`, that it leads to.
    Raises OSError."""
    for number in os.listdir(proc / str(pid) / "fd"):
        with suppress(OSError):  # it is closed meanwhile
            yield int(number), os.readlink(proc / str(pid) / "fd" / number)


def path_of(descriptor: int | str, pid: int | str = "self") -> str:
    """A path that leads to what a process has open."""
    return f"{PROC}/{pid}/fd/{descriptor}"


def namespace(pid: int | str, kind: str, proc: Path = PROC) -> str:
    """The name of a namespace that a process is in, such as `net`. Raises OSError."""
    return os.readlink(namespace_path(pid, kind, proc))


def namespace_path(pid: int | str, kind: str, proc: Path = PROC) -> Path:
    """The file to open to enter a namespace of a process."""
    return proc / str(pid) / "ns" / kind


def is_in_our(kind: str, pid: int, proc: Path = PROC) -> bool:
    """Whether a process is in the same namespace as this one, also where that is not told. In a
    network of its own (a container's) localhost is another one."""
    try:
        return namespace(pid, kind, proc) == namespace("self", kind, proc)
    except OSError:
        return True


def setting(name: str, proc: Path = PROC) -> Path:
    """The file of a setting of the kernel, such as `kernel.yama.ptrace_scope`."""
    return proc / "sys" / name.replace(".", "/")


def root_of(pid: int) -> str:
    """The root of the files of a process, as seen from here; "" of one that has the same files as
    this one, and where that is not told."""
    own, theirs = PROC / "self" / "root", PROC / str(pid) / "root"
    with suppress(OSError):
        if not is_in_our("mnt", pid) or os.readlink(theirs) != os.readlink(own):
            return str(theirs)
    return ""


def working_directory(pid: int | str) -> str:
    """Raises OSError."""
    return os.readlink(PROC / str(pid) / "cwd")

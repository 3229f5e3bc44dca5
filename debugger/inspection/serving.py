"""Whether a thread sleeps until somebody connects: a server that is idle, which keeps nobody
waiting who could be told apart from its clients' silence.

The system call that it sleeps in, and the file descriptors of it, are what the kernel tells of a
process to who may trace it. Nothing is written, and the thread sleeps on.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from .connections import listening

_CALLS = {
    "x86_64": {
        **dict.fromkeys((43, 288), "accept"),
        **dict.fromkeys((232, 281, 441), "epoll"),
        **dict.fromkeys((7, 271), "poll"),
        **dict.fromkeys((23, 270), "select"),
    },
    "aarch64": {
        **dict.fromkeys((202, 242), "accept"),
        **dict.fromkeys((22, 441), "epoll"),
        73: "poll",
        72: "select",
    },
}
"""The numbers of Linux's system calls that wait for files."""
_EPOLLED = re.compile(r"^tfd:\s+(\d+)", re.M)
_MOST_FILES = 1024


def listens_at(pid: int, thread: int, proc: Path = Path("/proc")) -> str:
    """Where the thread waits for somebody to connect, `host:port` or a path; "" where it does not,
    or nobody tells."""
    try:
        files = {
            os.readlink(proc / str(pid) / "fd" / str(file)) for file in _files(pid, thread, proc)
        }
    except (OSError, ValueError, IndexError, struct.error):
        return ""
    inodes = [int(one[8:-1]) for one in files if one.startswith("socket:[")]
    return next(iter(listening(pid, inodes, proc)), "") if inodes else ""


def _files(pid: int, thread: int, proc: Path) -> Iterable[int]:
    """The file descriptors that it waits for."""
    place = proc / str(pid)
    number, *words = (place / "task" / str(thread) / "syscall").read_text().split()
    given = [int(word, 16) for word in words]
    match _CALLS.get(platform.machine(), {}).get(int(number)) if number.isdigit() else None:
        case "accept":
            return [given[0]]
        case "epoll":
            return map(int, _EPOLLED.findall((place / "fdinfo" / str(given[0])).read_text()))
        case "poll":
            count = min(given[1], _MOST_FILES)
            return [
                file for file, _ in struct.iter_unpack("=iI", _memory(place, given[0], 8 * count))
            ]
        case "select":
            bits = int.from_bytes(
                _memory(place, given[1], (min(given[0], _MOST_FILES) + 7) // 8), "little"
            )
            return [file for file in range(bits.bit_length()) if bits >> file & 1]
    return []


def _memory(place: Path, address: int, size: int) -> bytes:
    if not address:
        return b""
    with open(place / "mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)

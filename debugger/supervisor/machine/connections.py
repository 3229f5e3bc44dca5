"""The TCP connections between ranks, and what lies in the kernel between them, from /proc.

Bytes that a rank has sent and its peer has not taken are a sign of where a message stands: gloo
takes nothing off a connection before a receive is posted.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ESTABLISHED, _CLOSE_WAIT, _LISTEN = 0x01, 0x08, 0x0A
_KEPT = {_ESTABLISHED, _CLOSE_WAIT, _LISTEN}
_ACCEPTS = 1 << 16
"""The flag of a Unix socket that listens."""
_MOST_SOCKETS = 1 << 17


@dataclass(frozen=True, slots=True)
class Socket:
    """A TCP socket of a process: addresses are `host:port`; bytes that wait in the kernel."""

    pid: int
    local: str
    remote: str
    state: int
    unsent: int
    unread: int

    @property
    def listens(self) -> bool:
        return self.state == _LISTEN

    @property
    def port(self) -> int:
        return int(self.local.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Link:
    """All connections of one rank to another, or to an address elsewhere (`peer` is None).

    `unsent`: bytes of the rank that the other side's kernel has not taken; `unread`: bytes that
    have arrived and that the rank has not taken; `closed`: how many the other side has closed.
    """

    rank: int
    peer: int | None
    address: str
    count: int
    unsent: int
    unread: int
    closed: int


def sockets_of(pids: Iterable[int], proc: Path = Path("/proc")) -> list[Socket]:
    """The TCP sockets of these processes; of one that cannot be looked at, none."""
    tables: dict[str, Mapping[int, tuple[str, str, int, int, int]]] = {}
    found = []
    for pid in pids:
        try:
            space = os.readlink(proc / str(pid) / "ns/net")
            inodes = list(_inodes(proc / str(pid) / "fd"))
        except OSError:
            continue
        if space not in tables:
            tables[space] = _table(proc / str(pid) / "net")
        for inode in inodes:
            row = tables[space].get(inode)
            if row is not None:
                found.append(Socket(pid, *row))
    return found


def listening(pid: int, inodes: Iterable[int], proc: Path = Path("/proc")) -> list[str]:
    """The addresses of those of these sockets of a process at which it takes connections."""
    folder, wanted = proc / str(pid) / "net", set(inodes)
    found = [
        row[0] for inode, row in _table(folder).items() if inode in wanted and row[2] == _LISTEN
    ]
    with suppress(OSError), open(folder / "unix") as file:
        for words in (line.split() for _, line in zip(range(_MOST_SOCKETS), file, strict=False)):
            if len(words) > 6 and words[6].isdigit() and int(words[6]) in wanted:
                found += [" ".join(words[7:]) or "a socket"] * bool(int(words[3], 16) & _ACCEPTS)
    return found


def connected_to(pid: int, inodes: Iterable[int], proc: Path = Path("/proc")) -> list[str]:
    """The addresses of the peers to which those of these sockets of a process are connected."""
    rows, wanted = _table(proc / str(pid) / "net"), set(inodes)
    return [row[1] for inode, row in rows.items() if inode in wanted and row[2] != _LISTEN]


def is_this_network(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether an address means the same to this process: not where it is in a container that has
    its own network, in which localhost is another one."""
    try:
        return os.readlink(proc / str(pid) / "ns/net") == os.readlink(proc / "self/ns/net")
    except OSError:
        return True


def links(sockets: Iterable[Socket], ranks: Mapping[int, int]) -> list[Link]:
    """Returns the links between the ranks; `ranks` has them by their pids."""
    open_ = [one for one in sockets if not one.listens]
    ends = {(one.local, one.remote): ranks[one.pid] for one in open_ if one.pid in ranks}
    sums: dict[tuple[int, int | None, str], list[int]] = {}
    for one in open_:
        if one.pid not in ranks:
            continue
        peer = ends.get((one.remote, one.local))
        host = "" if peer is not None else one.remote
        total = sums.setdefault((ranks[one.pid], peer, host), [0, 0, 0, 0])
        added = (1, one.unsent, one.unread, int(one.state == _CLOSE_WAIT))
        total[:] = [known + more for known, more in zip(total, added, strict=True)]
    return [
        Link(rank, peer, address, *total)
        for (rank, peer, address), total in sorted(
            sums.items(), key=lambda one: (one[0][0], one[0][1] is None, one[0][1] or 0, one[0][2])
        )
    ]


def _inodes(folder: Path) -> Iterable[int]:
    for name in os.listdir(folder):
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _table(folder: Path) -> Mapping[int, tuple[str, str, int, int, int]]:
    """Reads the table by inode: local and remote address, state, bytes unsent and unread."""
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(folder / name) as file:
                next(file, None)
                for _, line in zip(range(_MOST_SOCKETS), file, strict=False):
                    row = _row(line)
                    if row is not None:
                        found[row[0]] = row[1]
        except OSError:
            continue
    return found


def _row(line: str) -> tuple[int, tuple[str, str, int, int, int]] | None:
    words = line.split()
    try:
        state = int(words[3], 16)
        if state not in _KEPT:
            return None
        unsent, unread = (int(word, 16) for word in words[4].split(":"))
        if state == _LISTEN:
            unsent = unread = 0  # of a listening socket they count connections
        return int(words[9]), (_address(words[1]), _address(words[2]), state, unsent, unread)
    except (ValueError, IndexError):
        return None


def _address(text: str) -> str:
    """`127.0.0.1:29500` of the kernel's `0100007F:733C`; an IPv4 address in IPv6 is plain."""
    host, port = text.split(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return f"{socket.inet_ntop(socket.AF_INET, packed[12:])}:{int(port, 16)}"
    return f"{socket.inet_ntop(socket.AF_INET6, packed)}:{int(port, 16)}"

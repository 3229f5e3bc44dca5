"""The TCP connections between ranks, and what lies in the kernel between them.

Bytes that a rank has sent and its peer has not taken are a sign of where a message stands: gloo
takes nothing off a connection before a receive is posted.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .proc import PROC, namespace, open_files

_ESTABLISHED, _CLOSE_WAIT, _LISTEN = 0x01, 0x08, 0x0A
_KEPT = {_ESTABLISHED, _CLOSE_WAIT, _LISTEN}
_ACCEPTS = 1 << 16
"""The flag of a Unix socket that listens."""
_MOST_SOCKETS = 1 << 17
_Row = tuple[str, str, int, int, int, int]
"""Local and remote address, state, bytes unsent and unread, and the user."""


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


def sockets_of(pids: Iterable[int], proc: Path = PROC) -> list[Socket]:
    """The TCP sockets of these processes; of one that cannot be looked at, none."""
    tables: dict[str, Mapping[int, _Row]] = {}
    found = []
    for pid in pids:
        try:
            space = namespace(pid, "net", proc)
            files = [leads_to for _, leads_to in open_files(pid, proc)]
        except OSError:
            continue
        if space not in tables:
            tables[space] = _table(proc / str(pid) / "net")
        for leads_to in files:
            row = tables[space].get(inode_of(leads_to))
            if row is not None:
                found.append(Socket(pid, *row[:5]))
    return found


def listening(pid: int, inodes: Iterable[int], proc: Path = PROC) -> list[str]:
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


def connected_to(pid: int, inodes: Iterable[int], proc: Path = PROC) -> list[str]:
    """The addresses of the peers to which those of these sockets of a process are connected."""
    rows, wanted = _table(proc / str(pid) / "net"), set(inodes)
    return [row[1] for inode, row in rows.items() if inode in wanted and row[2] != _LISTEN]


def owner_of_peer(connection: socket.socket) -> int | None:
    """The user of the socket at the other end of a connection within this host; None where that is
    not known, because it is closed already, or on another host. Raises OSError."""
    here, there = connection.getsockname(), connection.getpeername()
    ends = f"{there[0]}:{there[1]}", f"{here[0]}:{here[1]}"
    rows = _table(PROC / "self" / "net").values()
    return next((row[5] for row in rows if row[:3] == (*ends, _ESTABLISHED)), None)


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


def inode_of(leads_to: str) -> int:
    """The inode of a socket, as the path to which a descriptor leads has it; 0 of another file."""
    return int(leads_to[8:-1]) if leads_to.startswith("socket:[") else 0


def _table(folder: Path) -> Mapping[int, _Row]:
    """Reads the table of connections, by inode."""
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


def _row(line: str) -> tuple[int, _Row] | None:
    words = line.split()
    try:
        state = int(words[3], 16)
        if state not in _KEPT or words[9] == "0":
            return None  # it is no process's any more, or not yet
        unsent, unread = (int(word, 16) for word in words[4].split(":"))
        if state == _LISTEN:
            unsent = unread = 0  # of a listening socket they count connections
        ends = _address(words[1]), _address(words[2])
        return int(words[9]), (*ends, state, unsent, unread, int(words[7]))
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

"""A message that is read where it lies, in the memory of its sender's process: copied once, where a
ring takes two copies, and memory that two processors write and read in turns.

Whether a rank may do that is the system's to say; both find it out when they meet, and where one
may not its messages take the other way. The sender waits for the answer. When it may wait no
longer, its time is over or its group has failed, it says so in a word that the peer sees, before
the program has its memory back: what was read before one looked at that word is right.
"""

from __future__ import annotations

import mmap
import os
import platform
import socket
from struct import Struct
from threading import Lock

from ..base.linux import address_of, read_memory

PEER_WORDS_BYTES = 4096
FOR_LINK, FOR_LANE = 0, 64
"""Where the words lie in that: of messages in a mesh's steps, and of a mailbox's."""

REORDERS = platform.machine() not in ("x86_64", "AMD64")
"""Whether this processor lets two reads or two writes pass each other."""
_WHERE = Struct("<qQ16s")
"""The process, where it has mapped the memory that this lies in, a secret."""


class Fenced:
    """Base of what two processes share without a lock."""

    def __init__(self) -> None:
        self._order = Lock()
        self._order.acquire()

    def _fence(self) -> None:
        """Order all reads and writes before it before all behind it: what the processor would
        otherwise let pass each other, a write and a later read even on x86."""
        self._order.release()
        self._order.acquire()


class PeerMemory(Fenced):
    """The memory of a peer's process, if this rank may read it, and this one's for the peer. One
    thread at a time uses it."""

    def __init__(
        self,
        mine: memoryview,
        theirs: memoryview,
        process: int | None = None,
        is_read: bool = False,
    ) -> None:
        """`mine`, `theirs`: a word each, that only this rank writes, and only the peer. `process`:
        the peer's, if this rank may read it; `is_read`: whether the peer may read this one."""
        super().__init__()
        self._mine, self._theirs = mine.cast("Q"), theirs.cast("Q")
        self._process = process
        self.is_read = is_read
        self.known = 0
        """The withdrawals of the peer that this rank has been told of."""

    def offers(self, data: memoryview) -> int:
        """Returns the address at which the peer is to read this; 0: it cannot."""
        return address_of(data) if self.is_read and not data.readonly else 0

    def read(self, address: int, into: memoryview) -> bool:
        """Copies what the peer has offered; False where that cannot be, or the peer has withdrawn
        something that this rank does not know of."""
        if self._process is None or not read_memory(self._process, address, into):
            return False
        if REORDERS:
            self._fence()
        return bool(self._theirs[0] == self.known)

    def withdraw(self) -> None:
        """From now on what was offered may change."""
        self._mine[0] += 1
        if REORDERS:
            self._fence()

    def close(self) -> None:
        """Lets the memory go: nothing is offered or read any more."""
        self._process, self.is_read = None, False
        self._mine = self._theirs = memoryview(bytearray(8)).cast("Q")


def announce(memory: mmap.mmap) -> None:
    """Says at the beginning of this rank's memory, which a peer will map, whose it is."""
    address = address_of(memoryview(memory))
    _WHERE.pack_into(memory, 0, os.getpid(), address, os.urandom(16))


def reached(connection: socket.socket, theirs: mmap.mmap) -> tuple[int | None, bool]:
    """Finds out, with the peer at the other end that calls it as well and has announced itself in
    `theirs`, what `PeerMemory` is to be told. A process of that number is the peer, and not one of
    another container, if it has the same secret where it says."""
    process, address, _secret = written = _WHERE.unpack_from(theirs)
    read = bytearray(_WHERE.size)
    may = read_memory(process, address, memoryview(read)) and _WHERE.unpack(read) == written
    connection.sendall(b"R" if may else b"-")
    return process if may else None, connection.recv(1) == b"R"

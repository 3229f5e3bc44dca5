"""Slots of shared memory that one rank writes and one peer reads; the socket between them says
which slot holds what, and which are free again, so no flag in memory is ever polled.

The memory is an anonymous file (memfd): it has no name that anybody could open or that could be
left behind, is not limited by the size of /dev/shm, and goes with the last of the two processes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import sys
from collections import deque

from .base import SEGMENT_BYTES

SLOT_BYTES = 2 * SEGMENT_BYTES
SLOTS = 4
RING_BYTES = SLOT_BYTES * SLOTS

_HAVE, _HAVE_NOT = b"M", b"-"


class Outbox:
    """The slots that this rank fills for one peer."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._view = memoryview(memory)
        self.free = deque(range(SLOTS))

    def put(self, data: memoryview) -> int | None:
        """Copy at most `SLOT_BYTES` into a free slot; the slot, or None when none is free."""
        if not self.free:
            return None
        slot = self.free.popleft()
        start = slot * SLOT_BYTES
        self._view[start : start + len(data)] = data
        return slot

    def close(self) -> None:
        self._view.release()
        _unmap(self._memory)


class Inbox:
    """The slots that a peer fills for this rank."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._view = memoryview(memory)

    def get(self, slot: int, size_bytes: int) -> memoryview:
        """What the slot holds; valid until the slot is given back."""
        start = slot * SLOT_BYTES
        return self._view[start : start + size_bytes]

    def close(self) -> None:
        self._view.release()
        _unmap(self._memory)


def share(connection: socket.socket) -> tuple[Outbox, Inbox] | None:
    """Exchange memory with the peer on a blocking Unix socket; None when one of the two cannot.

    Both sides call it, as the first thing on the connection. Raises OSError when the peer is gone.
    """
    try:
        descriptor = os.memfd_create("distcore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, RING_BYTES)
        _seal(descriptor)
        mine = mmap.mmap(descriptor, RING_BYTES)
    except (OSError, AttributeError) as error:
        _say_once(error)
        connection.sendall(_HAVE_NOT)
        mine = None
    else:
        socket.send_fds(connection, [_HAVE], [descriptor])
        os.close(descriptor)
    answer, received, _flags, _address = socket.recv_fds(connection, 1, 1)
    if not answer:
        raise ConnectionResetError("the peer left before it shared its memory")
    theirs = _map(received[0]) if answer == _HAVE and received else None
    # Each tells the other whether it could map what it got: only both together use it.
    usable = mine is not None and theirs is not None
    connection.sendall(_HAVE if usable else _HAVE_NOT)
    answer = connection.recv(1)
    if mine is None or theirs is None or answer != _HAVE:
        for memory in (mine, theirs):
            if memory is not None:
                memory.close()
        return None
    return Outbox(mine), Inbox(theirs)


def _map(descriptor: int) -> mmap.mmap | None:
    """Map what the peer sent; nothing that could still shrink, which would kill its readers."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptor).st_size != RING_BYTES:
            return None
        return mmap.mmap(descriptor, RING_BYTES)
    except OSError as error:
        _say_once(error)
        return None
    finally:
        os.close(descriptor)


def _seal(descriptor: int) -> None:
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _unmap(memory: mmap.mmap) -> None:
    try:
        memory.close()
    except BufferError:
        pass  # the traceback of an error holds a piece of it: it goes with that


_said = False


def _say_once(error: BaseException) -> None:
    global _said
    if not _said:
        _said = True
        sys.stderr.write(
            f"distcore: no shared memory between the ranks of this host ({error}); "
            "their messages go through sockets\n"
        )

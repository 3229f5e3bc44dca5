"""Slots of shared memory that one rank writes and one peer reads; the socket between them says
which slot holds what, and which are free again, so no flag in memory is ever polled.

The memory is an anonymous file (memfd): it has no name that anybody could open or that could be
left behind, is not limited by the size of /dev/shm, and goes with the last of the two processes.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from .base import BOARD_BYTES, SEGMENT_BYTES, SharedBoard, unmap
from .lane import LANE_BYTES, Lane
from .peer_memory import FOR_LANE, FOR_LINK, PEER_WORDS_BYTES, PeerMemory, announce, reached

SLOT_BYTES = 2 * SEGMENT_BYTES
SLOTS = 4
RING_BYTES = SLOT_BYTES * SLOTS

_HAVE, _HAVE_NOT = b"M", b"-"


class _Slots:
    def __init__(self, memory: mmap.mmap, peer_memory: PeerMemory | None = None) -> None:
        self._memory = memory
        self.peer_memory = peer_memory
        self._view = memoryview(memory)

    def close(self) -> None:
        self._view.release()
        if self.peer_memory is not None:
            self.peer_memory.close()
        unmap(self._memory)


class SlotOutbox(_Slots):
    """The slots that this rank fills for one peer."""

    def __init__(self, memory: mmap.mmap, peer_memory: PeerMemory | None = None) -> None:
        super().__init__(memory, peer_memory)
        self.free = deque(range(SLOTS))

    def put(self, data: memoryview) -> int | None:
        """Copy at most `SLOT_BYTES` into a free slot; the slot, or None when none is free."""
        if not self.free:
            return None
        slot = self.free.popleft()
        start = slot * SLOT_BYTES
        self._view[start : start + len(data)] = data
        return slot


class SlotInbox(_Slots):
    """The slots that a peer fills for this rank."""

    def get(self, slot: int, size_bytes: int) -> memoryview:
        """Returns what the slot holds; valid until the slot is given back."""
        start = slot * SLOT_BYTES
        return self._view[start : start + size_bytes]


class Gone(Exception):
    """A peer (its rank in the group) left before there was memory to share."""

    def __init__(self, peer: int, error: OSError) -> None:
        super().__init__(str(error))
        self.peer = peer


def new_bells() -> tuple[int, int]:
    """Makes the eventfds by which peers wake a waiter of this rank, and its mailbox's thread."""
    flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
    return os.eventfd(0, flags), os.eventfd(0, flags)


def share(
    peer: int, connection: socket.socket, bells: Sequence[int] = (), in_place: bool = True
) -> tuple[SlotOutbox, SlotInbox, Lane | None] | None:
    """Exchange memory with the peer on a blocking Unix socket; None when one of the two cannot.

    With the `bells` of both, messages can go through it as well. `in_place`, on both or on none:
    long ones may be read where they lie. Both sides call it, as the first thing on the connection.
    Raises Gone.
    """
    theirs: list[int] = []
    size_bytes = RING_BYTES + LANE_BYTES + PEER_WORDS_BYTES
    try:
        memories = _exchange({peer: connection}, -1, size_bytes, True, bells, theirs)
        if memories is None:
            return None
        outbox, inbox = memories
        with _naming(peer):
            known = reached(connection, inbox) if in_place else (None, False)

        def peer_memory(word: int) -> PeerMemory:
            start = RING_BYTES + LANE_BYTES + word
            mine, its = (memoryview(memory)[start : start + 8] for memory in (outbox, inbox))
            return PeerMemory(mine, its, *known)

        lane = None
        if bells and len(theirs) == len(bells):
            two = theirs.pop(0), theirs.pop(0)
            lane = Lane((outbox, inbox), RING_BYTES, two, peer_memory(FOR_LANE))
        of_link = peer_memory(FOR_LINK)
        return SlotOutbox(outbox, of_link), SlotInbox(inbox, of_link), lane
    finally:
        for descriptor in theirs:
            os.close(descriptor)


def share_board(
    connections: Mapping[int, socket.socket], rank: int, wanted: bool
) -> SharedBoard | None:
    """Make a board with the ranks at the other ends of these blocking Unix sockets; None, on all of
    them, when one does not want one or cannot have it.

    All ranks call it, when nothing else is on the way. Raises Gone.
    """
    memories = _exchange(connections, rank, BOARD_BYTES, wanted)
    return None if memories is None else SharedBoard(memories)


def _exchange(
    connections: Mapping[int, socket.socket],
    rank: int,
    size_bytes: int,
    wanted: bool,
    given: Sequence[int] = (),
    taken: list[int] | None = None,
) -> list[mmap.mmap] | None:
    """Give every peer this rank's memory and take theirs: all of them, this rank's too, in the
    order of ranks. None, on all of them, where one does not want to, or cannot. `given`: more
    descriptors for the peers; theirs are added to `taken`, and are the caller's."""
    mine = _make(size_bytes) if wanted else None
    memories: dict[int, mmap.mmap | None] = {}
    try:
        for peer, connection in connections.items():
            with _naming(peer):
                if mine is None:
                    connection.sendall(_HAVE_NOT)
                else:
                    socket.send_fds(connection, [_HAVE], [mine[0], *given])
        for peer, connection in connections.items():
            with _naming(peer):
                answer, received, _flags, _address = socket.recv_fds(
                    connection, 1, 3, socket.MSG_CMSG_CLOEXEC
                )
                if not answer:
                    raise ConnectionResetError("the peer left before it shared its memory")
                memories[peer] = _map_received(received[0], size_bytes) if received else None
                if taken is not None:
                    taken += received[1:]
    finally:
        if mine is not None:
            os.close(mine[0])
            memories[rank] = mine[1]
    # Each tells the others whether it could map what it got: only all together use it.
    complete = mine is not None and None not in memories.values()
    for peer, connection in connections.items():
        with _naming(peer):
            connection.sendall(_HAVE if complete else _HAVE_NOT)
    for peer, connection in connections.items():
        with _naming(peer):
            complete &= connection.recv(1) == _HAVE
    maps = [memory for _rank, memory in sorted(memories.items()) if memory is not None]
    if complete:
        return maps
    for memory in maps:
        memory.close()
    return None


@contextmanager
def _naming(peer: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Gone(peer, error) from None


def _make(size_bytes: int) -> tuple[int, mmap.mmap] | None:
    """New memory of this size, and its descriptor; None where there is none to be had."""
    try:
        descriptor = os.memfd_create("distcore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        memory = _map(descriptor, size_bytes)
        announce(memory)
        return descriptor, memory
    except (OSError, AttributeError) as error:
        _say_once(str(error))
        return None


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(descriptor, size_bytes)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)  # fewer faults; where the system allows it
    except OSError:
        pass  # a kernel without huge pages
    return memory


def _map_received(descriptor: int, size_bytes: int) -> mmap.mmap | None:
    """Map what a peer sent, and close it; nothing that could still shrink, which would kill its
    readers."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptor).st_size != size_bytes:
            return None
        return _map(descriptor, size_bytes)
    except OSError as error:
        _say_once(str(error))
        return None
    finally:
        os.close(descriptor)


@functools.cache
def _say_once(error: str) -> None:
    sys.stderr.write(
        f"distcore: no shared memory between the ranks of this host ({error}); "
        "their messages go through sockets\n"
    )

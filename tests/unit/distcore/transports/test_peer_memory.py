"""Memory of a peer's process: who may read it, and until when."""

from __future__ import annotations

import mmap
import os
import socket
from contextlib import closing

import pytest

from distcore.transports.peer_memory import PeerMemory, announce, reached
from tests.support.meshes import together


def pair(process: int | None, is_read: bool) -> list[PeerMemory]:
    words = [memoryview(bytearray(8)) for _ in range(2)]
    return [PeerMemory(mine, theirs, process, is_read) for mine, theirs in (words, reversed(words))]


@pytest.mark.parametrize("known", [True, False])
def test_a_process_is_the_peer_if_it_has_its_secret(known: bool) -> None:
    """Rank 1's memory names this process, as another container might, and not its own secret."""
    one, other = socket.socketpair()
    memories = [mmap.mmap(-1, 4096) for _ in range(2)]
    for memory in memories:
        announce(memory)
    seen = [bytes(memory[:64]) for memory in memories]
    if not known:
        memories[1][16:32] = os.urandom(16)
    with closing(one), closing(other):
        ends = (one, other)

        def body(rank: int) -> tuple[int | None, bool]:
            theirs = mmap.mmap(-1, 4096)
            theirs[:64] = seen[1 - rank]
            return reached(ends[rank], theirs)

        of_0, of_1 = together(2, body)
    assert of_0 == (os.getpid() if known else None, True)
    assert of_1 == (os.getpid(), known)


def test_what_is_withdrawn_is_not_read_until_that_is_known() -> None:
    one, other = pair(os.getpid(), True)
    data, into = bytearray(b"data" * 100_000), bytearray(400_000)
    address = one.offers(memoryview(data))
    assert other.read(address, memoryview(into))
    assert into == data
    one.withdraw()
    assert not other.read(address, memoryview(into))
    other.known += 1
    assert other.read(address, memoryview(into))


def test_what_cannot_be_read_is_not_offered_or_not_read() -> None:
    one, other = pair(None, False)
    assert not one.offers(memoryview(bytearray(8)))
    assert not other.read(1, memoryview(bytearray(8)))
    allowed, _peer = pair(os.getpid(), True)
    assert not allowed.offers(memoryview(b"read-only"))
    assert not allowed.read(1, memoryview(bytearray(8)))  # nothing is mapped there
    address = allowed.offers(memoryview(bytearray(8)))
    allowed.close()
    assert address
    assert not allowed.read(address, memoryview(bytearray(8)))

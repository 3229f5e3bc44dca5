"""The memory that all ranks of a host see: who gets it, and that it is never read too early."""

from __future__ import annotations

import itertools
import socket
import threading
import time

import pytest
import torch
import torch.distributed as dist

from distcore import errors
from distcore.algorithms import collectives
from distcore.algorithms.choice import choice_from
from distcore.base.reduction import reduction_for
from distcore.transports import shared_memory
from distcore.transports.base import BLOCK_BYTES, BOARD_BYTES, PAGES, SharedBoard
from distcore.transports.mesh import Mesh
from tests.support.meshes import Wires, on_meshes, together

SUM = reduction_for(dist.ReduceOp.SUM, torch.int32)


def soon() -> float:
    return time.monotonic() + 30


def has_board(mesh: Mesh) -> bool:
    return mesh.board is not None


def test_ranks_of_one_host_have_a_board() -> None:
    assert on_meshes(3, "shm", has_board) == [True] * 3
    assert on_meshes(2, "shm", has_board) == [False] * 2, "two ranks have nobody to share it with"
    assert on_meshes(3, "tcp", has_board) == [False] * 3
    assert on_meshes(3, "shm", has_board, checked=True) == [False] * 3, "it has no checksums"


def test_nobody_has_a_board_when_one_cannot_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    really_make = shared_memory._make
    turns = itertools.count()  # its next number is one rank's alone, however many ask at once

    def make(size_bytes: int) -> object:
        if size_bytes == BOARD_BYTES and next(turns) == 1:
            return None
        return really_make(size_bytes)

    monkeypatch.setattr(shared_memory, "_make", make)
    assert on_meshes(4, "shm", has_board) == [False] * 4


def test_a_rank_that_leaves_meanwhile_is_named() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.close()
        with pytest.raises(shared_memory.Gone) as caught:
            shared_memory.share_board({3: near}, 0, True)
    assert caught.value.peer == 3


def test_pages_come_back_after_all_others() -> None:
    board = SharedBoard([bytearray(BOARD_BYTES) for _ in range(2)])
    turns = [board.turn() for _ in range(2 * PAGES)]
    assert turns[:PAGES] == turns[PAGES:]
    turns[0][1][:] = b"x" * len(turns[0][1])
    assert bytes(turns[1][1][:1]) == bytes(turns[0][0][:1]) == b"\0"


@pytest.mark.parametrize("size", [3, 4])
def test_calls_of_all_kinds_one_after_the_other(size: int) -> None:
    """Ranks that run ahead must not write what others still read: blocks of all lengths, at once
    behind each other, each with other numbers."""
    wish = choice_from("board")
    counts = (1, 1000, BLOCK_BYTES // 4, 3 * BLOCK_BYTES // 4 + 5)

    def body(mesh: Mesh) -> None:
        for turn in range(3):
            for count in counts:
                mesh.begin(f"calls of {count}", soon())
                base = 100 * turn
                mine = torch.full((count,), base + mesh.rank, dtype=torch.int32)
                total = sum(base + rank for rank in range(size))
                reduced = mine.clone()
                collectives.all_reduce(mesh, reduced, SUM, wish)
                assert reduced.eq(total).all()
                root = turn % size
                sent = mine.clone()
                collectives.broadcast(mesh, sent, root, wish)
                assert sent.eq(base + root).all()
                gathered = [torch.empty_like(mine) for _ in range(size)]
                collectives.all_gather(mesh, gathered, mine, wish)
                assert all(part.eq(base + rank).all() for rank, part in enumerate(gathered))
                part = torch.empty_like(mine)
                collectives.reduce_scatter(mesh, part, [mine] * size, SUM, wish)
                assert part.eq(total).all()
                collectives.all_to_all(mesh, gathered, [mine + 7] * size, wish)
                assert all(part.eq(base + rank + 7).all() for rank, part in enumerate(gathered))
                mesh.end()

    assert on_meshes(size, "shm", body) == [None] * size


def test_splits_that_do_not_match_are_named() -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("all_to_all_single(int32)", soon())
        inputs = [torch.zeros(2, dtype=torch.int32) for _ in range(3)]
        outputs = [torch.zeros(2, dtype=torch.int32) for _ in range(3)]
        if mesh.rank == 1:
            outputs[2] = torch.zeros(5, dtype=torch.int32)
        collectives.all_to_all(mesh, outputs, inputs)

    found = on_meshes(3, "shm", body)
    assert isinstance(found[1], errors.CallMismatch), found
    assert "rank 20 sent 8 bytes where rank 10 expects 20" in str(found[1])


def test_a_rank_that_ends_in_a_call_is_named() -> None:
    ready = threading.Barrier(3)

    def body(rank: int) -> None:
        mesh = wires.mesh(rank)
        mesh.begin("all_reduce(sum)", soon())
        ready.wait(10)
        if rank == 1:
            for peer in (0, 2):
                wires.end(1, peer).shutdown(socket.SHUT_RDWR)
            return
        collectives.all_reduce(mesh, torch.zeros(1_000_000, dtype=torch.int32), SUM)

    with Wires(3, "shm") as wires:
        began = time.monotonic()
        found = together(3, body)
        assert time.monotonic() - began < 20
    for rank in (0, 2):
        error = found[rank]
        assert isinstance(error, errors.PeerLost), error
        assert error.culprit == 10

"""A transport between threads of one process, strict about what an algorithm may do."""

from __future__ import annotations

import mmap
import queue
import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from distcore.transports.base import (
    BOARD_BYTES,
    SEGMENT_BYTES,
    Receive,
    Send,
    SharedBoard,
    Transport,
)

T = TypeVar("T")
PATIENCE_S = 30.0


class ThreadTransport(Transport):
    """Messages carry the number of their step, and arrive in pieces, interleaved at random.

    `steps` and `sent_bytes` count what this rank did. It is an error to change what is being sent,
    to send or receive twice to or from a peer in a step, and to expect another step or length.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        lines: list[list[queue.Queue[tuple[int, bytes]]]],
        board: SharedBoard | None = None,
    ):
        self.rank, self.size, self.board = rank, size, board
        self._lines = lines  # [from][to]
        self._random = random.Random(rank)
        self.steps = 0
        self.sent_bytes = 0

    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        step = self.steps
        self.steps += 1
        for peers in ([send.peer for send in sends], [receive.peer for receive in receives]):
            assert len(set(peers)) == len(peers), f"twice the same peer: {peers}"
            assert self.rank not in peers, "a message to itself"
            assert all(0 <= peer < self.size for peer in peers), peers
        copies = [bytes(send.data) for send in sends]
        for send, copy in zip(sends, copies, strict=True):
            self.sent_bytes += len(copy)
            self._lines[self.rank][send.peer].put((step, copy))
        self._deliver([(receive, self._take(receive, step)) for receive in receives])
        for send, copy in zip(sends, copies, strict=True):
            assert bytes(send.data) == copy, "it changed while it was being sent"

    def _take(self, receive: Receive, step: int) -> bytes:
        sent_in, message = self._lines[receive.peer][self.rank].get(timeout=PATIENCE_S)
        assert sent_in == step, f"a message of step {sent_in} in step {step}"
        assert len(message) == len(receive.into), (len(message), len(receive.into))
        return message

    def _deliver(self, arrived: list[tuple[Receive, bytes]]) -> None:
        left = [(receive, message, 0) for receive, message in arrived]
        while left:
            receive, message, offset = left.pop(self._random.randrange(len(left)))
            piece = memoryview(bytearray(message[offset : offset + SEGMENT_BYTES]))
            end = offset + len(piece)
            if receive.consume is None:
                receive.into[offset:end] = piece
            elif piece:
                receive.consume(piece, offset)
                piece[:] = b"\xee" * len(piece)  # it was valid only until now
            if end < len(message):
                left.append((receive, message, end))


def run_ranks(size: int, body: Callable[[ThreadTransport], T]) -> list[T]:
    """What `body` returns on each of `size` ranks, each in a thread; the first error is raised."""
    lines: list[list[queue.Queue[tuple[int, bytes]]]] = [
        [queue.Queue() for _ in range(size)] for _ in range(size)
    ]
    memories = [mmap.mmap(-1, BOARD_BYTES) for _ in range(size)]
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(ThreadTransport(rank, size, lines, SharedBoard(memories)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:
            thread.join(0.05)
    if errors:
        raise errors[0]
    left_over = [(a, b) for a in range(size) for b in range(size) if not lines[a][b].empty()]
    assert not left_over, f"messages that nobody received (from, to): {left_over}"
    return [results[rank] for rank in range(size)]

"""Along a line of ranks, block by block, so that all links work at once: for large messages.

Steps and bytes below are for n ranks and a message of N bytes in B blocks of 1 MiB; "sent" is by
one rank. Every byte crosses every link once, the least there is. Source: the pipelined linear
algorithms of Open MPI's tuned component ("pipeline", a chain with fan-out 1).
"""

from __future__ import annotations

from ..base.reduction import Reduction
from ..transports.base import Receive, Send, Transport
from .pieces import NO_RECEIVES, NO_SENDS, give_back, take_scratch

BLOCK_BYTES = 1024 * 1024


def broadcast(net: Transport, data: memoryview, root: int) -> None:
    """From the root to its next rank, and on. Steps: B + n-2. Sent: N, by the last nothing."""
    rank, size = net.rank, net.size
    place = (rank - root) % size
    following, previous = (rank + 1) % size, (rank - 1) % size
    blocks = -(-len(data) // BLOCK_BYTES)
    for step in range(blocks + size - 2):
        known, wanted = _block(data, step - place), _block(data, step - place + 1)
        net.exchange(
            [Send(following, known)] if known and place < size - 1 else NO_SENDS,
            [Receive(previous, wanted)] if wanted and place > 0 else NO_RECEIVES,
        )


def reduce(net: Transport, data: memoryview, root: int, reduction: Reduction) -> None:
    """From the rank before the root, backwards to the root, each adding its own.

    Steps: B + n-2. Sent: N, by the root nothing. Scratch: 2 blocks on the ranks in between, whose
    data does not change.
    """
    rank, size = net.rank, net.size
    place = (root - 1 - rank) % size  # the root is the last, at size - 1
    following, previous = (rank - 1) % size, (rank + 1) % size
    blocks = -(-len(data) // BLOCK_BYTES)
    between = 0 < place < size - 1
    room = min(BLOCK_BYTES, len(data))
    scratch = take_scratch(2 * room if between else 0)
    halves = (scratch[:room], scratch[room:])
    partial = data[:0]
    for step in range(blocks + size - 2):
        if place == 0:
            partial = _block(data, step)
        own = _block(data, step - place + 1)
        result = halves[step % 2][: len(own)] if between else own
        net.exchange(
            [Send(following, partial)] if partial and place < size - 1 else NO_SENDS,
            [Receive(previous, own, reduction.folding(own, result))]
            if own and place > 0
            else NO_RECEIVES,
        )
        partial = result
    give_back(scratch)
    if rank == root:
        reduction.finish_bytes(data, size)


def _block(data: memoryview, number: int) -> memoryview:
    """Returns block `number`: an empty one before the first and after the last."""
    if number < 0:
        return data[:0]
    return data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]

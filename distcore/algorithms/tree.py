"""Binomial trees: everything to or from one rank in ceil(log2 n) steps, for small messages.

Ranks are numbered from the root on; in the step of distance d those that are multiples of 2 d deal
with the rank d further. Steps and bytes below are for n ranks and a message of N bytes (m: one
rank's part); "sent" is by one rank. Source: Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.reduction import Reduction
from ..transports.base import Receive, Send, Transport
from .pieces import NO_RECEIVES, NO_SENDS, SCRATCH_BYTES, blocks, give_back, take_scratch


def broadcast(net: Transport, data: memoryview, root: int) -> None:
    """Every rank that has the message hands it on. Steps: ceil(log2 n). Sent: N ceil(log2 n) by the
    root."""
    rank, size = net.rank, net.size
    place = (rank - root) % size
    distance = 1 << (size - 1).bit_length()
    while distance > 1:
        distance //= 2
        below = place % (2 * distance)
        if below == 0 and place + distance < size:
            net.exchange([Send((rank + distance) % size, data)], NO_RECEIVES)
        elif below == distance:
            net.exchange(NO_SENDS, [Receive((rank - distance) % size, data)])
        else:
            net.exchange(NO_SENDS, NO_RECEIVES)


def reduce(net: Transport, data: memoryview, root: int, reduction: Reduction) -> None:
    """A rank that has combined all it will get hands the result on.

    Steps: ceil(log2 n). Sent: N, by the root nothing. Scratch: N on ranks in between, whose data
    does not change; in blocks of as many steps each above 4 MiB (for 2 ranks there are none in
    between, and no blocks).
    """
    rank, size = net.rank, net.size
    place = (rank - root) % size
    between = 0 < place < size - 1 and place % 2 == 0
    block_bytes = SCRATCH_BYTES if size > 2 else len(data)
    scratch = take_scratch(min(len(data), block_bytes) if between else 0)
    for begin, end in blocks(len(data), block_bytes):
        known = data[begin:end]
        result = scratch[: end - begin] if between else known
        distance = 1
        while distance < size:
            below = place % (2 * distance)
            if below == distance:
                net.exchange([Send((rank - distance) % size, known)], NO_RECEIVES)
            elif below == 0 and place + distance < size:
                consume = reduction.folding(known, result)
                net.exchange(NO_SENDS, [Receive((rank + distance) % size, result, consume)])
                known = result
            else:
                net.exchange(NO_SENDS, NO_RECEIVES)
            distance *= 2
    give_back(scratch)
    if rank == root:
        reduction.finish_bytes(data, size)


def gather(
    net: Transport, outputs: Sequence[memoryview] | None, data: memoryview, root: int
) -> None:
    """A rank that has all it will get hands it on. All parts have m bytes.

    Steps: ceil(log2 n). Sent: m times the ranks behind the sender, itself included. Scratch: as
    much, on the root n m, however large: meant for small messages.
    """
    rank, size, part = net.rank, net.size, len(data)
    place = (rank - root) % size
    held = scratch = data
    if place % 2 == 0:
        held = scratch = take_scratch(min(_reach(place, size), size - place) * part)
        held[:part] = data
    distance = 1
    while distance < size:
        below = place % (2 * distance)
        if below == distance:
            net.exchange([Send((rank - distance) % size, held)], NO_RECEIVES)
        elif below == 0 and place + distance < size:
            into = held[distance * part : min(2 * distance, size - place) * part]
            net.exchange(NO_SENDS, [Receive((rank + distance) % size, into)])
        else:
            net.exchange(NO_SENDS, NO_RECEIVES)
        distance *= 2
    if outputs is not None:
        for place in range(size):
            outputs[(root + place) % size][:] = held[place * part : (place + 1) * part]
    if scratch is not data:
        give_back(scratch)


def scatter(
    net: Transport, output: memoryview, inputs: Sequence[memoryview] | None, root: int
) -> None:
    """A rank that has parts for others hands half of them on. All parts have m bytes.

    Steps: ceil(log2 n). Sent: (n-1) m by the root. Scratch: m times the ranks behind, on the root
    n m, however large: meant for small messages.
    """
    rank, size, part = net.rank, net.size, len(output)
    place = (rank - root) % size
    held = scratch = output
    if place % 2 == 0:
        held = scratch = take_scratch(min(_reach(place, size), size - place) * part)
    if inputs is not None:
        for behind in range(size):
            held[behind * part : (behind + 1) * part] = inputs[(root + behind) % size]
    distance = 1 << (size - 1).bit_length()
    while distance > 1:
        distance //= 2
        below = place % (2 * distance)
        if below == 0 and place + distance < size:
            half = held[distance * part : min(2 * distance, size - place) * part]
            net.exchange([Send((rank + distance) % size, half)], NO_RECEIVES)
        elif below == distance:
            net.exchange(NO_SENDS, [Receive((rank - distance) % size, held)])
        else:
            net.exchange(NO_SENDS, NO_RECEIVES)
    if scratch is not output:
        output[:] = held[:part]
        give_back(scratch)


def _reach(place: int, size: int) -> int:
    """Returns how many ranks from `place` on are in its subtree, were the tree full."""
    return place & -place if place else size

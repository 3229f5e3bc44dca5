"""Rank plus 1, 2, 4, ...: ceil(log2 n) steps for any number of ranks, for small messages.

Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
in multiport message-passing systems" (1997); the barrier is Hensgen, Finkel and Manber, "Two
algorithms for barrier synchronization" (1988), the dissemination barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..transports.base import Receive, Send, Transport
from .pieces import NO_RECEIVES, NO_SENDS, give_back, take_scratch


def all_gather(net: Transport, outputs: Sequence[memoryview], data: memoryview) -> None:
    """All parts known so far go back by 1, 2, 4, ... ranks, at last only those still missing there.

    Steps: ceil(log2 n). Sent: (n-1) m for n equal parts of m bytes. Scratch: n m, however large,
    since parts that travel together must lie together: meant for small messages.
    """
    rank, size = net.rank, net.size
    order = [*range(rank, size), *range(rank)]
    edge = [0]
    for place in order:
        edge.append(edge[-1] + len(outputs[place]))
    held = take_scratch(edge[-1])
    held[: len(data)] = data
    known = 1
    while known < size:
        count = min(known, size - known)
        away = held[: edge[count]]
        into = held[edge[known] : edge[known + count]]
        net.exchange(
            [Send((rank - known) % size, away)] if away else NO_SENDS,
            [Receive((rank + known) % size, into)] if into else NO_RECEIVES,
        )
        known *= 2
    for behind, place in enumerate(order):
        outputs[place][:] = held[edge[behind] : edge[behind + 1]]
    give_back(held)


def barrier(net: Transport) -> None:
    """Everyone has heard, through others, of everyone. Steps: ceil(log2 n). Sent: a byte a step."""
    rank, size = net.rank, net.size
    sent, heard = memoryview(bytearray(1)), memoryview(bytearray(1))
    distance = 1
    while distance < size:
        net.exchange(
            [Send((rank + distance) % size, sent)], [Receive((rank - distance) % size, heard)]
        )
        distance *= 2

"""Ranks at distance 1, 2, 4, ...: log2 n steps, for small messages, and for powers of two.

Steps and bytes below are for n ranks, of which p is the largest power of two, and a message of N
bytes; "sent" is by one rank. Where pairs exchange and n is no power of two, the n-p ranks from p on
hand their data to rank minus p first and get the result last. Source: Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005); Rabenseifner (2004)
for halving; Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
communications in multiport message-passing systems" (1997) for the all-gather; Hensgen, Finkel and
Manber, "Two algorithms for barrier synchronization" (1988) for the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.buffers import copy_bytes
from ..base.reduction import Reduction
from ..transports.base import Receive, Send, Transport
from .pieces import (
    NO_RECEIVES,
    NO_SENDS,
    SCRATCH_BYTES,
    blocks,
    edges,
    give_back,
    sendrecv,
    take_scratch,
)


def all_reduce_by_doubling(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """All that is known so far is exchanged, with twice as many ranks behind it in each step.

    Steps: log2 p, and 2 more unless n = p. Sent: N log2 p, and N more by ranks that stand in for
    another (which send N). Scratch: N, in blocks of as many steps each above 4 MiB. Both of a pair
    combine in the order of ranks, so the result has the same bits everywhere.
    """
    rank, size = net.rank, net.size
    scratch = take_scratch(min(len(data), SCRATCH_BYTES))
    powers = 1 << (size.bit_length() - 1)
    for begin, end in blocks(len(data), SCRATCH_BYTES):
        block, received = data[begin:end], scratch[: end - begin]
        _fold_in(net, block, powers, reduction)
        distance = 1
        while distance < powers:
            if rank >= powers:
                net.exchange(NO_SENDS, NO_RECEIVES)
            else:
                peer = rank ^ distance
                net.exchange([Send(peer, block)], [Receive(peer, received)])
                if rank < peer:
                    reduction.merge(block, received, block)
                else:
                    reduction.merge(received, block, block)
            distance *= 2
        if rank < powers:
            reduction.finish_bytes(block, size)
        _fold_out(net, block, powers)
    give_back(scratch)


def all_reduce_by_halving(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """Each of a pair takes over half of what both had, until each rank has one chunk of the result;
    then the pairs exchange the results the same way back.

    Steps: 2 log2 p, and 2 more unless n = p. Sent: 2 N (p-1)/p, and N more by ranks that stand in
    for another (which send N). Scratch: none. Each chunk is computed by one rank, so the result
    has the same bits everywhere.
    """
    rank, size = net.rank, net.size
    powers = 1 << (size.bit_length() - 1)
    _fold_in(net, data, powers, reduction)
    if rank >= powers:
        for _ in range(2 * (powers.bit_length() - 1)):
            net.exchange(NO_SENDS, NO_RECEIVES)
    else:
        edge = edges(len(data), powers, reduction.item_bytes)
        own = _halve(net, powers, edge, data, reduction)
        reduction.finish_bytes(own, size)
        distance = 1
        while distance < powers:
            first = rank & -distance
            other = first ^ distance
            known = data[edge[first] : edge[first + distance]]
            wanted = data[edge[other] : edge[other + distance]]
            peer = rank ^ distance
            sendrecv(net, peer, known, peer, wanted)
            distance *= 2
    _fold_out(net, data, powers)


def reduce_scatter_by_halving(
    net: Transport, output: memoryview, inputs: Sequence[memoryview], reduction: Reduction
) -> None:
    """Each of a pair takes over the parts of half of the ranks, until each rank has its own left.

    For powers of two only. N: all parts together. Steps: log2 n. Sent: N (n-1)/n for equal parts.
    Scratch: N, however large, since the inputs must not change: meant for small messages.
    """
    size = net.size
    scratch = take_scratch(sum(map(len, inputs)))
    edge = [0]
    for part in inputs:
        edge.append(edge[-1] + len(part))
        scratch[edge[-2] : edge[-1]] = part
    copy_bytes(output, _halve(net, size, edge, scratch, reduction))
    give_back(scratch)
    reduction.finish_bytes(output, size)


def _halve(
    net: Transport, powers: int, edge: Sequence[int], data: memoryview, reduction: Reduction
) -> memoryview:
    """Halve the `powers` chunks between the edges with one peer after the other, in log2 steps,
    until the own one is left, which all have been folded into."""
    rank, first, distance = net.rank, 0, powers
    while distance > 1:
        distance //= 2
        kept = data[edge[first] : edge[first + distance]]
        given = data[edge[first + distance] : edge[first + 2 * distance]]
        if rank & distance:
            first += distance
            kept, given = given, kept
        peer = rank ^ distance
        sendrecv(net, peer, given, peer, kept, reduction.folding(kept))
    return data[edge[rank] : edge[rank + 1]]


def _fold_in(net: Transport, data: memoryview, powers: int, reduction: Reduction) -> None:
    """The ranks from `powers` on hand what they have to a rank below. One step."""
    rank, size = net.rank, net.size
    if powers == size:
        return
    if rank >= powers:
        net.exchange([Send(rank - powers, data)], NO_RECEIVES)
    elif rank + powers < size:
        net.exchange(NO_SENDS, [Receive(rank + powers, data, reduction.folding(data))])
    else:
        net.exchange(NO_SENDS, NO_RECEIVES)


def _fold_out(net: Transport, data: memoryview, powers: int) -> None:
    """The ranks that folded in get the result. One step."""
    rank, size = net.rank, net.size
    if powers == size:
        return
    if rank >= powers:
        net.exchange(NO_SENDS, [Receive(rank - powers, data)])
    elif rank + powers < size:
        net.exchange([Send(rank + powers, data)], NO_RECEIVES)
    else:
        net.exchange(NO_SENDS, NO_RECEIVES)


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
        sendrecv(net, (rank - known) % size, away, (rank + known) % size, into)
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

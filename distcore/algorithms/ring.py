"""Around the ring: n-1 steps, in which every rank sends to the next and receives from the previous.

The fewest bytes, evenly spread over all links, and no scratch worth the name: for large messages.
Steps and bytes below are for n ranks and a message of N bytes; "sent" is by one rank. Source:
Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009);
Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), also for the pairwise exchange; the broadcast is that of van de Geijn (Barnett et al.,
"Interprocessor collective communication library", 1994).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.buffers import copy_bytes
from ..base.reduction import Reduction
from ..transports.base import Receive, Send, Transport
from .pieces import (
    NO_RECEIVES,
    NO_SENDS,
    blocks,
    edges,
    give_back,
    sendrecv,
    share_of_scratch,
    take_scratch,
)


def all_reduce(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """A chunk per rank goes round and grows into the result; then the results go round.

    Steps: 2 (n-1). Sent: 2 N (n-1)/n. Scratch: none. Each chunk is computed by one rank, so the
    result has the same bits everywhere.
    """
    rank, size = net.rank, net.size
    edge = edges(len(data), size, reduction.item_bytes)
    chunks = [data[edge[place] : edge[place + 1]] for place in range(size)]
    following, previous = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        partial, own = chunks[rank - step], chunks[rank - step - 1]
        sendrecv(net, following, partial, previous, own, reduction.folding(own))
    reduction.finish_bytes(chunks[following], size)
    _pass_round(net, chunks, following)


def _pass_round(net: Transport, chunks: Sequence[memoryview], first: int) -> None:
    """Everyone has chunk `first` (rank plus a constant): n-1 steps later everyone has them all."""
    rank, size = net.rank, net.size
    following, previous = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        known, wanted = chunks[(first - step) % size], chunks[(first - step - 1) % size]
        sendrecv(net, following, known, previous, wanted)


def reduce_scatter(
    net: Transport, output: memoryview, inputs: Sequence[memoryview], reduction: Reduction
) -> None:
    """Each rank's part goes round and grows, and arrives there last.

    N: all parts together. Steps: n-1. Sent: N less the own part. Scratch: for 3 ranks and more two
    parts, in blocks of 2 MiB and n-1 steps each where the largest part is longer.
    """
    rank, size = net.rank, net.size
    following, previous = (rank + 1) % size, (rank - 1) % size
    longest = max(map(len, inputs))
    share = share_of_scratch(2) if size > 2 else longest
    room = min(share, longest) if size > 2 else 0
    scratch = take_scratch(2 * room)
    halves = (scratch[:room], scratch[room:])
    for begin, end in blocks(longest, share):
        partial = inputs[rank - 1][begin:end]
        for step in range(size - 1):
            own = inputs[(rank - step - 2) % size][begin:end]
            if step < size - 2:
                result = halves[step % 2][: len(own)]
            else:
                result = output[begin : begin + len(own)]
            sendrecv(net, following, partial, previous, own, reduction.folding(own, result))
            partial = result
    give_back(scratch)
    reduction.finish_bytes(output, size)


def all_gather(net: Transport, outputs: Sequence[memoryview], data: memoryview) -> None:
    """Every part goes round. Steps: n-1. Sent: all parts but that of the next rank."""
    copy_bytes(outputs[net.rank], data)
    _pass_round(net, outputs, net.rank)


def broadcast(net: Transport, data: memoryview, root: int) -> None:
    """A binomial tree spreads a chunk to each rank; then the chunks go round.

    Steps: ceil(log2 n) + n-1. Sent: 2 N (n-1)/n by the root, at most N (n-1)/n + N/2 by another.
    Scratch: none.
    """
    rank, size = net.rank, net.size
    place = (rank - root) % size
    edge = edges(len(data), size)
    reach = 1 << (size - 1).bit_length()
    while reach > 1:
        reach >>= 1
        below = place % (2 * reach)
        if below == 0 and place + reach < size:
            part = data[edge[place + reach] : edge[min(place + 2 * reach, size)]]
            net.exchange([Send((rank + reach) % size, part)] if part else NO_SENDS, NO_RECEIVES)
        elif below == reach:
            part = data[edge[place] : edge[min(place + reach, size)]]
            net.exchange(NO_SENDS, [Receive((rank - reach) % size, part)] if part else NO_RECEIVES)
        else:
            net.exchange(NO_SENDS, NO_RECEIVES)
    _pass_round(net, [data[edge[part] : edge[part + 1]] for part in range(size)], place)


def all_to_all_pairwise(
    net: Transport, outputs: Sequence[memoryview], inputs: Sequence[memoryview]
) -> None:
    """In step k rank r sends to r+k and receives from r-k; for powers of two it exchanges with
    r xor k. At any time a rank deals with one or two others.

    Steps: n-1. Sent: all inputs but the own one. Empty parts travel too: splits that do not match
    are found where they do not, not by a timeout.
    """
    rank, size = net.rank, net.size
    paired = not size & (size - 1)
    copy_bytes(outputs[rank], inputs[rank])
    for step in range(1, size):
        to = rank ^ step if paired else (rank + step) % size
        source = to if paired else (rank - step) % size
        sends = [Send(to, inputs[to], at_rest=True)]
        net.exchange(sends, [Receive(source, outputs[source])])

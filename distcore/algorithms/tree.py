"""Trees: everything to or from one rank, in ceil(log2 n) steps of a binomial tree for small
messages, along a chain, block by block, for large ones.

In the binomial tree ranks are numbered from the root on; in the step of distance d those that are
multiples of 2 d deal with the rank d further. In the chain every byte crosses every link once, the
least there is, and all links work at once. Steps and bytes below are for n ranks and a message of N
bytes (m: one rank's part; B: its blocks of 1 MiB); "sent" is by one rank. Source: Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005); the
pipelined linear algorithms of Open MPI's tuned component ("pipeline", a chain with fan-out 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.reduction import Reduction
from ..transports.base import Receive, Send, Transport
from .pieces import NO_RECEIVES, NO_SENDS, SCRATCH_BYTES, blocks, give_back, sendrecv, take_scratch


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
            net.exchange([Send((rank + distance) % size, data, at_rest=True)], NO_RECEIVES)
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


CHAIN_BLOCK_BYTES = 1024 * 1024


def broadcast_along_chain(net: Transport, data: memoryview, root: int) -> None:
    """From the root to its next rank, and on. Steps: B + n-2. Sent: N, by the last nothing."""
    rank, size = net.rank, net.size
    place = (rank - root) % size
    following, previous = (rank + 1) % size, (rank - 1) % size
    blocks = -(-len(data) // CHAIN_BLOCK_BYTES)
    for step in range(blocks + size - 2):
        known = _chain_block(data, step - place if place < size - 1 else -1)
        wanted = _chain_block(data, step - place + 1 if place else -1)
        sendrecv(net, following, known, previous, wanted)


def reduce_along_chain(net: Transport, data: memoryview, root: int, reduction: Reduction) -> None:
    """From the rank before the root, backwards to the root, each adding its own.

    Steps: B + n-2. Sent: N, by the root nothing. Scratch: 2 blocks on the ranks in between, whose
    data does not change.
    """
    rank, size = net.rank, net.size
    place = (root - 1 - rank) % size  # the root is the last, at size - 1
    following, previous = (rank - 1) % size, (rank + 1) % size
    blocks = -(-len(data) // CHAIN_BLOCK_BYTES)
    between = 0 < place < size - 1
    room = min(CHAIN_BLOCK_BYTES, len(data))
    scratch = take_scratch(2 * room if between else 0)
    halves = (scratch[:room], scratch[room:])
    partial = nothing = data[:0]
    for step in range(blocks + size - 2):
        if place == 0:
            partial = _chain_block(data, step)
        own = _chain_block(data, step - place + 1)
        result = halves[step % 2][: len(own)] if between else own
        given = partial if place < size - 1 else nothing
        taken = own if place else nothing
        sendrecv(net, following, given, previous, taken, reduction.folding(own, result))
        partial = result
    give_back(scratch)
    if rank == root:
        reduction.finish_bytes(data, size)


def _chain_block(data: memoryview, number: int) -> memoryview:
    """Returns block `number`: an empty one before the first and after the last."""
    if number < 0:
        return data[:0]
    return data[number * CHAIN_BLOCK_BYTES : (number + 1) * CHAIN_BLOCK_BYTES]

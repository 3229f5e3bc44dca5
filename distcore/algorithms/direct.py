"""Everyone to everyone at once: one step (or two), for few ranks, where steps cost more than bytes.

Steps and bytes below are for n ranks and a message of N bytes; "sent" is by one rank. Source: the
linear algorithms of Open MPI's tuned and basic components; `two_step` is the reduce-scatter and
all-gather of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
in MPICH" (2005), with both halves linear.
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
    merge_in_order,
    sendrecv,
    share_of_scratch,
    take_scratch,
)


def peers_of(net: Transport) -> list[int]:
    """All others, beginning with the next: so that not everyone sends to rank 0 first."""
    rank, size = net.rank, net.size
    return [*range(rank + 1, size), *range(rank)]


def all_reduce(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """Everyone sends all it has to everyone, and combines in the order of ranks.

    Steps: 1. Sent: (n-1) N. Scratch: (n-1) N; a message that needs more than 4 MiB of scratch goes
    in blocks, a step each.
    """
    peers = peers_of(net)
    share = share_of_scratch(len(peers))
    scratch = take_scratch(len(peers) * min(share, len(data)))
    for begin, end in blocks(len(data), share):
        block, length = data[begin:end], end - begin
        parts = [block] * net.size
        for place, peer in enumerate(peers):
            parts[peer] = scratch[place * length : (place + 1) * length]
        net.exchange(
            [Send(peer, block) for peer in peers], [Receive(peer, parts[peer]) for peer in peers]
        )
        merge_in_order(parts, net.rank, block, reduction)
    give_back(scratch)
    reduction.finish_bytes(data, net.size)


def all_reduce_in_two_steps(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """Each rank combines one chunk in the order of ranks, and sends the result to everyone.

    Steps: 2. Sent: 2 N (n-1)/n. Scratch: N (n-1)/n; a message that needs more than 4 MiB of
    scratch goes in blocks, two steps each.
    """
    rank, size, peers = net.rank, net.size, peers_of(net)
    share = share_of_scratch(len(peers))
    longest = edges(min(len(data), share * size), size, reduction.item_bytes)[1]
    scratch = take_scratch(len(peers) * longest)
    for begin, end in blocks(len(data), share * size):
        block = data[begin:end]
        edge = edges(end - begin, size, reduction.item_bytes)
        chunks = [block[edge[place] : edge[place + 1]] for place in range(size)]
        own = chunks[rank]
        length = len(own)
        parts = [own] * size
        for place, peer in enumerate(peers):
            parts[peer] = scratch[place * length : (place + 1) * length]
        others = [peer for peer in peers if chunks[peer]]
        net.exchange(
            [Send(peer, chunks[peer]) for peer in others],
            [Receive(peer, parts[peer]) for peer in peers] if own else NO_RECEIVES,
        )
        if own:
            merge_in_order(parts, rank, own, reduction)
            reduction.finish_bytes(own, size)
        net.exchange(
            [Send(peer, own) for peer in peers] if own else NO_SENDS,
            [Receive(peer, chunks[peer]) for peer in others],
        )
    give_back(scratch)


def reduce_scatter(
    net: Transport, output: memoryview, inputs: Sequence[memoryview], reduction: Reduction
) -> None:
    """Everyone sends each rank its part, and combines its own in the order of ranks.

    N: all parts together. Steps: 1. Sent: N less the own part. Scratch: none for 2 ranks; else n-1
    times the own part, in blocks of a step each where that is more than 4 MiB.
    """
    rank, size, peers = net.rank, net.size, peers_of(net)
    own = inputs[rank]
    if size == 2:
        (peer,) = peers
        folding = reduction.folding(own, output)
        sendrecv(net, peer, inputs[peer], peer, own, folding, at_rest=True)
        reduction.finish_bytes(output, size)
        return
    share = share_of_scratch(len(peers))
    scratch = take_scratch(len(peers) * min(share, len(own)))
    for begin, end in blocks(max(map(len, inputs)), share):
        part = own[begin:end]
        length = len(part)
        parts = [part] * size
        for place, peer in enumerate(peers):
            parts[peer] = scratch[place * length : (place + 1) * length]
        net.exchange(
            [
                Send(peer, inputs[peer][begin:end], at_rest=True)
                for peer in peers
                if len(inputs[peer]) > begin
            ],
            [Receive(peer, parts[peer]) for peer in peers] if length else NO_RECEIVES,
        )
        if length:
            merge_in_order(parts, rank, output[begin : begin + length], reduction)
    give_back(scratch)
    reduction.finish_bytes(output, size)


def broadcast(net: Transport, data: memoryview, root: int) -> None:
    """The root sends to everyone. Steps: 1. Sent: (n-1) N by the root."""
    if net.rank == root:
        net.exchange([Send(peer, data, at_rest=True) for peer in peers_of(net)], NO_RECEIVES)
    else:
        net.exchange(NO_SENDS, [Receive(root, data)])


def all_gather(net: Transport, outputs: Sequence[memoryview], data: memoryview) -> None:
    """Everyone sends what it has to everyone. m: the own part. Steps: 1. Sent: (n-1) m."""
    peers = peers_of(net)
    net.exchange(
        [Send(peer, data, at_rest=True) for peer in peers] if data else NO_SENDS,
        [Receive(peer, outputs[peer]) for peer in peers if outputs[peer]],
    )
    copy_bytes(outputs[net.rank], data)


def gather(
    net: Transport, outputs: Sequence[memoryview] | None, data: memoryview, root: int
) -> None:
    """Everyone sends to the root. m: the own part. Steps: 1. Sent: m, by the root nothing."""
    if net.rank != root:
        net.exchange([Send(root, data, at_rest=True)] if data else NO_SENDS, NO_RECEIVES)
        return
    assert outputs is not None
    peers = peers_of(net)
    net.exchange(NO_SENDS, [Receive(peer, outputs[peer]) for peer in peers if outputs[peer]])
    copy_bytes(outputs[root], data)


def scatter(
    net: Transport, output: memoryview, inputs: Sequence[memoryview] | None, root: int
) -> None:
    """The root sends everyone its part. Steps: 1. Sent: by the root, all but its own part."""
    if net.rank != root:
        net.exchange(NO_SENDS, [Receive(root, output)] if output else NO_RECEIVES)
        return
    assert inputs is not None
    peers = peers_of(net)
    sends = [Send(peer, inputs[peer], at_rest=True) for peer in peers if inputs[peer]]
    net.exchange(sends, NO_RECEIVES)
    copy_bytes(output, inputs[root])


def all_to_all(net: Transport, outputs: Sequence[memoryview], inputs: Sequence[memoryview]) -> None:
    """Everyone sends everyone its part. Steps: 1. Sent: all inputs but the own one.

    Empty parts travel too: splits that do not match are found where they do not, not by a timeout.
    """
    peers = peers_of(net)
    net.exchange(
        [Send(peer, inputs[peer], at_rest=True) for peer in peers],
        [Receive(peer, outputs[peer]) for peer in peers],
    )
    copy_bytes(outputs[net.rank], inputs[net.rank])


def all_reduce_by_hub(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """Rank 0 combines everything in the order of ranks, and sends the result to everyone.

    Steps: 2. Sent: (n-1) N by rank 0, N by the others. Scratch: (n-1) N on rank 0, however large:
    meant for small messages.
    """
    size, length = net.size, len(data)
    if net.rank:
        net.exchange([Send(0, data)], NO_RECEIVES)
        net.exchange(NO_SENDS, [Receive(0, data)])
        return
    scratch = take_scratch((size - 1) * length)
    parts = [data, *(scratch[part * length : (part + 1) * length] for part in range(size - 1))]
    net.exchange(NO_SENDS, [Receive(peer, parts[peer]) for peer in range(1, size)])
    merge_in_order(parts, 0, data, reduction)
    give_back(scratch)
    reduction.finish_bytes(data, size)
    net.exchange([Send(peer, data) for peer in range(1, size)], NO_RECEIVES)

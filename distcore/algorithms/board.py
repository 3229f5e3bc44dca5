"""Over the memory that all ranks of a host see: each byte is copied in once, and read in place.

A message is cut into blocks that a page has room for. In each step a rank writes one block into its
page, works on blocks of the steps before, and meets all others: what was written before a meeting
is there for all behind it. A page comes back after two more meetings, when nobody reads it any
more. Steps and bytes below are for n ranks, a message of N bytes in B blocks and parts of m bytes;
a meeting is two exchanges of one byte. Source: the shared-memory collectives of Open MPI's coll/sm
component, and Graham and Shipman, "MPI support for multi-core architectures: optimized shared
memory collectives" (2008).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from ..base.buffers import copy_bytes
from ..base.reduction import SERIAL_ELEMENTS, Reduction
from ..transports.base import BLOCK_BYTES, Receive, Send, SharedBoard, Transport
from . import direct
from .pieces import NO_RECEIVES, NO_SENDS, edges

_TOKEN = memoryview(b"\0")


def all_reduce(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """Each rank combines one chunk of every block in the order of ranks, out of all pages; the
    results are read from there.

    Meetings: B + 1. Copied: 2 N (n-1)/n + N/n. Each chunk is computed by one rank, so the result
    has the same bits everywhere.
    """
    board, rank, size = _board(net), net.rank, net.size
    begun: list[tuple[memoryview, list[memoryview], tuple[int, ...]]] = []
    count = -(-len(data) // BLOCK_BYTES)
    for step in range(count + 2):
        if step < count:
            block = data[step * BLOCK_BYTES : (step + 1) * BLOCK_BYTES]
            pages, edge = board.turn(), edges(len(block), size, reduction.item_bytes)
            begun.append((block, pages, edge))
            for low, high in ((0, edge[rank]), (edge[rank + 1], edge[-1])):
                copy_bytes(pages[rank][low:high], block[low:high])
        if 1 <= step <= count:
            block, pages, edge = begun[step - 1]
            low, high = edge[rank], edge[rank + 1]
            parts = [page[low:high] for page in pages]
            own = parts[rank]
            parts[rank] = block[low:high]
            _combine(parts, own, own, reduction, size)
            copy_bytes(block[low:high], own)
        if step >= 2:
            block, pages, edge = begun[step - 2]
            for peer in direct.peers_of(net):
                low, high = edge[peer], edge[peer + 1]
                copy_bytes(block[low:high], pages[peer][low:high])
        if step <= count:
            meet(net)


def reduce_scatter(
    net: Transport, output: memoryview, inputs: Sequence[memoryview], reduction: Reduction
) -> None:
    """Each rank combines its own part in the order of ranks, out of all pages.

    Meetings: B, for blocks of n cells in a page. Copied: all parts but the own one.
    """
    rank, size = net.rank, net.size
    cell = BLOCK_BYTES // size // 64 * 64

    def write(pages: list[memoryview], begin: int) -> None:
        for peer in direct.peers_of(net):
            part = inputs[peer][begin : begin + cell]
            copy_bytes(pages[rank][peer * cell : peer * cell + len(part)], part)

    def combine(pages: list[memoryview], begin: int) -> None:
        own = inputs[rank][begin : begin + cell]
        parts = [page[rank * cell : rank * cell + len(own)] for page in pages]
        spare, parts[rank] = parts[rank], own
        _combine(parts, spare, output[begin : begin + len(own)], reduction, size)

    _in_turns(net, max(map(len, inputs)), cell, write, combine)


def broadcast(net: Transport, data: memoryview, root: int) -> None:
    """The root writes, the others read. Meetings: B. Copied: N."""

    def write(pages: list[memoryview], begin: int) -> None:
        if net.rank == root:
            block = data[begin : begin + BLOCK_BYTES]
            copy_bytes(pages[root][: len(block)], block)

    def read(pages: list[memoryview], begin: int) -> None:
        if net.rank != root:
            block = data[begin : begin + BLOCK_BYTES]
            copy_bytes(block, pages[root][: len(block)])

    _in_turns(net, len(data), BLOCK_BYTES, write, read)


def all_gather(net: Transport, outputs: Sequence[memoryview], data: memoryview) -> None:
    """Everyone writes its part, and reads those of the others. Meetings: B. Copied: all parts."""

    def write(pages: list[memoryview], begin: int) -> None:
        block = data[begin : begin + BLOCK_BYTES]
        copy_bytes(pages[net.rank][: len(block)], block)

    def read(pages: list[memoryview], begin: int) -> None:
        for peer in direct.peers_of(net):
            block = outputs[peer][begin : begin + BLOCK_BYTES]
            copy_bytes(block, pages[peer][: len(block)])

    _in_turns(net, max(map(len, outputs)), BLOCK_BYTES, write, read)
    copy_bytes(outputs[net.rank], data)


def all_to_all(net: Transport, outputs: Sequence[memoryview], inputs: Sequence[memoryview]) -> None:
    """Everyone writes all parts, each into a cell of its page, and reads its own of every page.

    Meetings: 1. Copied: all parts but the own ones, in and out. Only the pairs know their sizes:
    they are written behind, so that all ranks see whether they agree; where not, the direct
    exchange says whose they are. Parts that are longer than a cell go in one more step: nothing is
    read twice, so a page gains nothing, and they may be read where they lie.
    """
    board, rank, size = _board(net), net.rank, net.size
    sizes = struct.Struct(f"<{2 * size}q")
    cell = BLOCK_BYTES // size // 64 * 64
    pages = board.turn()
    sizes.pack_into(pages[rank], BLOCK_BYTES, *map(len, inputs), *map(len, outputs))
    peers = direct.peers_of(net)
    for peer in peers:
        if (length := len(inputs[peer])) <= cell:
            copy_bytes(pages[rank][peer * cell : peer * cell + length], inputs[peer])
    meet(net)
    given = [sizes.unpack_from(page, BLOCK_BYTES) for page in pages]
    if any(given[a][b] != given[b][size + a] for a in range(size) for b in range(size)):
        direct.all_to_all(net, outputs, inputs)
        return
    for peer in peers:
        if (length := len(outputs[peer])) <= cell:
            copy_bytes(outputs[peer], pages[peer][rank * cell : rank * cell + length])
    if max(map(max, given)) > cell:
        net.exchange(
            [Send(peer, inputs[peer], True) for peer in peers if len(inputs[peer]) > cell],
            [Receive(peer, outputs[peer]) for peer in peers if len(outputs[peer]) > cell],
        )
    copy_bytes(outputs[rank], inputs[rank])


def _in_turns(
    net: Transport,
    length: int,
    block_bytes: int,
    write: Callable[[list[memoryview], int], None],
    read: Callable[[list[memoryview], int], None],
) -> None:
    """Block by block: each is written, all ranks meet, and it is read while the next one is
    written. Both are given a block's pages, and where it begins."""
    board = _board(net)
    before: tuple[list[memoryview], int] | None = None
    for begin in range(0, length + block_bytes, block_bytes):
        here = None
        if begin < length:
            here = (board.turn(), begin)
            write(*here)
        if before is not None:
            read(*before)
        if here is not None:
            meet(net)
        before = here


def meet(net: Transport) -> None:
    """No rank returns before all have come. Steps: 2. Sent: a byte by each, n-1 by rank 0."""
    if net.rank:
        net.exchange([Send(0, _TOKEN)], NO_RECEIVES)
        net.exchange(NO_SENDS, [Receive(0, memoryview(bytearray(1)))])
    else:
        others = range(1, net.size)
        net.exchange(NO_SENDS, [Receive(peer, memoryview(bytearray(1))) for peer in others])
        net.exchange([Send(peer, _TOKEN) for peer in others], NO_RECEIVES)


def _board(net: Transport) -> SharedBoard:
    assert net.board is not None, "the ranks of this group do not see the same memory"
    return net.board


def _combine(
    parts: Sequence[memoryview],
    spare: memoryview,
    out: memoryview,
    reduction: Reduction,
    size: int,
) -> None:
    """out = parts[0] op parts[1] op ..., piece by piece: a piece stays in the cache until all ranks
    are in it. `spare` is overwritten; only `out` may be one of the parts, or the spare."""
    step = SERIAL_ELEMENTS * reduction.item_bytes
    last = len(parts) - 1
    for start in range(0, len(out), step):
        end = start + step
        result, between = parts[0][start:end], spare[start:end]
        for place in range(1, last):
            reduction.merge(result, parts[place][start:end], between)
            result = between
        target = out[start:end]
        reduction.merge(result, parts[last][start:end], target)
        reduction.finish_bytes(target, size)

"""Parts that the algorithms share: how a message is cut, scratch memory, operands in rank order.

An algorithm works on bytes. Every rank of the group makes the same number of exchanges in a call,
empty ones where it has nothing to do, so that the numbers of the steps agree on all ranks. A
message of zero bytes is left out where both sides know its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..base.reduction import Reduction
from ..transports.base import Consume, Receive, Send, Transport

SCRATCH_BYTES = 4 * 1024 * 1024
"""The most scratch memory of one call, except where an algorithm's docstring says otherwise."""

NO_SENDS: tuple[Send, ...] = ()
NO_RECEIVES: tuple[Receive, ...] = ()

_KEPT = 2
_SMALL_BYTES = 64 * 1024
# Of SCRATCH_BYTES each, kept since fresh pages would cost as much as the copy into them.
_scratches: list[bytearray] = []


def sendrecv(
    net: Transport,
    to: int,
    data: memoryview,
    source: int,
    into: memoryview,
    consume: Consume | None = None,
    at_rest: bool = False,
) -> None:
    """Makes one step: `data` goes to one rank, `into` comes from one; what is empty is left out."""
    net.exchange(
        [Send(to, data, at_rest)] if data else NO_SENDS,
        [Receive(source, into, consume)] if into else NO_RECEIVES,
    )


@lru_cache(maxsize=4096)
def edges(length_bytes: int, parts: int, item_bytes: int = 1) -> tuple[int, ...]:
    """Returns where `parts` chunks of whole items begin, and where the last ends. The first ones
    are longer by an item where they cannot be equal; a chunk may be empty."""
    short, longer = divmod(length_bytes // item_bytes, parts)
    return tuple((part * short + min(part, longer)) * item_bytes for part in range(parts + 1))


def blocks(length_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """The message in blocks: (begin, end) of each."""
    for begin in range(0, length_bytes, block_bytes):
        yield begin, min(begin + block_bytes, length_bytes)


def share_of_scratch(parts: int) -> int:
    """Bytes of each of `parts` buffers that fit into the scratch: whole items of any dtype."""
    return max(SCRATCH_BYTES // parts // 64, 1) * 64


def take_scratch(length_bytes: int) -> memoryview:
    """Memory with anything in it; hand it back with `give_back`, or drop it."""
    if length_bytes <= _SMALL_BYTES or length_bytes > SCRATCH_BYTES:
        return memoryview(bytearray(length_bytes))
    try:
        memory = _scratches.pop()
    except IndexError:
        memory = bytearray(SCRATCH_BYTES)
    return memoryview(memory)[:length_bytes]


def give_back(scratch: memoryview) -> None:
    """Keeps scratch memory that is no longer used, for the next call of `take_scratch`."""
    memory = scratch.obj
    if isinstance(memory, bytearray) and len(memory) == SCRATCH_BYTES and len(_scratches) < _KEPT:
        _scratches.append(memory)


def merge_in_order(
    parts: Sequence[memoryview], own: int, out: memoryview, reduction: Reduction
) -> None:
    """out = parts[0] op parts[1] op ..., always in this order, so that all ranks get the same bits.

    The parts are overwritten, except parts[own]; `out` may be that one. At least two parts.
    """
    last = len(parts) - 1
    result = parts[0]
    spare = parts[0] if own != 0 else parts[1]
    for place in range(1, last):
        reduction.merge(result, parts[place], spare)
        result = spare
    reduction.merge(result, parts[last], out)

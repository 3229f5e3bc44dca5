"""Conformance suites for transports and backends, ours and others': plain assertions that run
under any test framework, or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from distcore.errors import GroupFailed
from distcore.transports.base import SEGMENT_BYTES, Receive, Send, Transport
from tests.support.known_calls import (
    CALLS,
    DTYPES,
    LAYOUTS,
    REDUCE_OPS,
    REDUCING,
    KnownCall,
    can_reduce,
)

Body = Callable[[Transport], Any]
Maker = Callable[[int, Body], Sequence[Any]]
"""(size, body): connect `size` ranks by the transport, run `body(its transport)` on each at the
same time (on threads), as one call of the group; for each rank, what its body returned, or the
exception that it raised. A rank whose body raises is lost for the others."""

SIZES = (0, 1, 3, 1021, 4096, 65_536, SEGMENT_BYTES - 8, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 8)
LARGE = 9_000_000


def check_transport(make: Maker, failures: bool = True) -> None:
    """Check that a transport does what `distcore.transports.base` promises.

    Every length, in both directions and between all ranks at once; messages handed on in segments;
    steps without messages; and, if `failures`: other lengths, other steps and lost peers end in a
    `GroupFailed` on every rank that waits. Raises AssertionError with what was wrong.
    """
    for size in (1, 2, 3):
        _expect_none(make(size, _all_to_all), f"all to all of {size} ranks")
    _expect_none(make(2, _segments), "messages in segments")
    _expect_none(make(3, _chain), "a chain, and steps without messages")
    _expect_none(make(3, _no_part_in_it), "steps that only some ranks take part in")
    if failures:
        for body in (_other_length, _other_step):
            found = make(2, body)
            assert isinstance(found[1], GroupFailed), (
                f"{body.__doc__}: expected a GroupFailed on rank 1, found {found[1]!r}"
            )
        found = make(3, _loss)
        for rank in (0, 2):
            assert isinstance(found[rank], GroupFailed), (
                f"rank 1 was lost: expected a GroupFailed on rank {rank}, found {found[rank]!r}"
            )


def _expect_none(found: Sequence[Any], what: str) -> None:
    for rank, one in enumerate(found):
        if isinstance(one, BaseException):
            raise AssertionError(f"{what}: rank {rank} raised {one!r}") from one
        assert one is None, f"{what}: the maker gave {one!r} for rank {rank}, not the body's None"


def content(size: int, *key: int) -> memoryview:
    """Bytes that differ with the key."""
    block = bytes((hash(key) % 239 + i * 13) % 251 for i in range(1009))
    return memoryview(bytearray((block * (size // 1009 + 1))[:size]))


def _all_to_all(net: Transport) -> None:
    peers = [peer for peer in range(net.size) if peer != net.rank]
    for size in (*SIZES, LARGE) if net.size == 2 else SIZES:
        into = {peer: memoryview(bytearray(size + peer)) for peer in peers}
        net.exchange(
            [Send(peer, content(size + net.rank, net.rank, peer)) for peer in peers],
            [Receive(peer, into[peer]) for peer in peers],
        )
        for peer in peers:
            assert into[peer] == content(size + peer, peer, net.rank), (
                f"{size + peer} bytes from rank {peer} to rank {net.rank} came out wrong"
            )


def _segments(net: Transport) -> None:
    peer = 1 - net.rank
    for size in SIZES:
        pieces: list[tuple[int, bytes]] = []

        def take(piece: memoryview, offset: int, to: Any = pieces) -> None:
            to.append((offset, bytes(piece)))

        into = memoryview(bytearray(size))
        net.exchange([Send(peer, content(size, net.rank))], [Receive(peer, into, take)])
        starts = [offset for offset, _piece in pieces]
        assert starts == list(range(0, size, SEGMENT_BYTES)), (
            f"{size} bytes were handed on in pieces at {starts}"
        )
        assert b"".join(piece for _offset, piece in pieces) == content(size, peer), (
            f"the pieces of {size} bytes are not what was sent"
        )
        assert not any(into), "`into` was written to, though the message was consumed"


def _chain(net: Transport) -> None:
    into = memoryview(bytearray(999))
    for step in range(20):
        sender, receiver = step % net.size, (step + 1) % net.size
        net.exchange(
            [Send(receiver, content(999, step))] if net.rank == sender else [],
            [Receive(sender, into)] if net.rank == receiver else [],
        )
        if net.rank == receiver:
            assert into == content(999, step), f"step {step} brought something else"


def _no_part_in_it(net: Transport) -> None:
    """Rank 0 runs ahead: it sends, and needs nothing, while rank 2 has not begun."""
    for step in range(50):
        into = memoryview(bytearray(100))
        if net.rank == 0:
            net.exchange([Send(2, content(100, step))], [])
        else:
            net.exchange([], [Receive(0, into)] if net.rank == 2 else [])
            assert net.rank == 1 or into == content(100, step), f"step {step} came out wrong"


def _other_length(net: Transport) -> None:
    """rank 1 expects another length than rank 0 sends"""
    if net.rank == 0:
        net.exchange([Send(1, content(8, 0))], [])
        net.exchange([], [Receive(1, content(1, 0))])
    else:
        net.exchange([], [Receive(0, content(9, 0))])


def _other_step(net: Transport) -> None:
    """rank 1 leaves out a step"""
    if net.rank == 0:
        net.exchange([], [])
        net.exchange([Send(1, content(8, 0))], [Receive(1, content(1, 0))])
    else:
        net.exchange([Send(0, content(1, 0))], [Receive(0, content(8, 0))])


class _Lost(Exception):
    pass


def _loss(net: Transport) -> None:
    if net.rank == 1:
        raise _Lost
    net.exchange([], [Receive(1, memoryview(bytearray(8)))])


def check_backend(
    name: str, dtypes: Sequence[str] = DTYPES, seed: int = 0, device: str = "cpu"
) -> list[str]:
    """Check a `torch.distributed` backend: every call that `known_calls` has, on the default group
    and on sub-groups that overlap, synchronous and asynchronous, with whole and strided tensors,
    empty and zero-dimensional ones; every reduce op with every dtype that it goes with.

    Called on all ranks of an initialised default group of this backend, with the same arguments;
    `dtypes` are those it has, and the tensors are on `device`. Takes a few seconds. What was
    called, as text. Raises AssertionError for a wrong result, naming call, rank and values; and
    whatever a call raises.
    """
    assert dist.is_initialized(), "check_backend: init_process_group has not been called"
    found = str(dist.get_backend())
    assert name in found, f"check_backend: the default group's backend is {found!r}, not {name!r}"
    done = []
    # What names no device is meant for the CPU, whatever the program's default device is.
    with torch.device("cpu"):
        for index, (group, call) in enumerate(_plan(_groups(name), dtypes)):
            if group is dist.GroupMember.NON_GROUP_MEMBER:
                continue
            one = KnownCall(**{**call, "seed": seed + index, "device": device})
            bits = one.run(group)
            if bits:
                every: list[Any] = [None] * dist.get_world_size(group)
                dist.all_gather_object(every, bits, group=group)
                assert len(set(every)) == 1, f"{one}: not the same bits on all ranks"
            done.append(str(one))
        dist.barrier()
    return done


def _groups(name: str) -> list[Any]:
    """The default group, one without the first rank, and one without the last."""
    size = dist.get_world_size()
    rest = [list(range(1, size)), list(range(size - 1))] if size > 2 else [[0]]
    return [None, *(dist.new_group(ranks, backend=name) for ranks in rest)]


def _plan(groups: Sequence[Any], dtypes: Sequence[str]) -> list[tuple[Any, dict[str, Any]]]:
    shapes: list[tuple[int, ...]] = [(5,), (3, 4), (), (0,), (70_001,)]
    plan: list[tuple[Any, dict[str, Any]]] = []
    for op, group in itertools.product(CALLS, groups):
        for index, shape in enumerate(shapes):
            for use_async in (False, True):
                call = {"op": op, "shape": shape, "use_async": use_async, "root": index}
                plan.append((group, {**call, "layout": LAYOUTS[index % 3]}))
    moved = [op for op in CALLS if op not in REDUCING]
    for index, (op, dtype) in enumerate(itertools.product(moved, dtypes)):
        plan.append((groups[index % len(groups)], {"op": op, "dtype": dtype, "root": index}))
    reduced = [
        (op, dtype)
        for op, dtype in itertools.product(REDUCE_OPS, dtypes)
        if hasattr(torch, dtype) and can_reduce(op, dtype)
    ]
    for index, (reduce_op, dtype) in enumerate(reduced):
        for op in REDUCING:
            call = {"op": op, "dtype": dtype, "reduce_op": reduce_op, "root": index}
            plan.append((groups[index % len(groups)], {**call, "exact": index % 2 == 0}))
    return plan

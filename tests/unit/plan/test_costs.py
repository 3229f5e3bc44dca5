"""The costs of the usual algorithms are those that distcore's own ones have: their messages and
bytes are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from distcore.algorithms import recursive, ring, tree
from distcore.base.reduction import Reduction, reduction_for
from distdebug.plan.traffic import Cost, Link, costs
from distdebug.record.ops import OPS
from distdebug.record.signature import Signature, item_bytes
from tests.support.threads_transport import ThreadTransport, run_ranks

BYTES = 840 * 4
"""Divisible by all sizes below, in elements of four bytes."""
SIZES = (2, 3, 4, 5, 6, 7, 8)


def reduction() -> Reduction:
    return reduction_for(dist.ReduceOp.SUM, torch.float32)


def parts(net: ThreadTransport) -> list[memoryview]:
    return [memoryview(bytearray(BYTES)) for _ in range(net.size)]


def data() -> memoryview:
    return memoryview(bytearray(BYTES))


def pieces(net: ThreadTransport) -> list[memoryview]:
    """The parts of one message."""
    length = BYTES // net.size
    whole = data()
    return [whole[place * length : (place + 1) * length] for place in range(net.size)]


FLOATS = (("float32", (BYTES // 4,)),)


def signature(op: str, size: int) -> Signature:
    """The call that `DONE` makes."""
    if op == "all_to_all":
        each = (BYTES // 4,) * size
        return Signature(op, FLOATS * size, FLOATS * size, sends=each, receives=each)
    if op == "all_gather":
        return Signature(op, FLOATS, FLOATS * size)
    root = 0 if op in ("broadcast", "reduce", "gather", "scatter") else None
    return Signature(op, FLOATS, root=root)


Body = Callable[[ThreadTransport], object]
DONE: dict[tuple[str, str], Body] = {
    ("all_reduce", "ring"): lambda net: ring.all_reduce(net, data(), reduction()),
    ("all_reduce", "doubling"): lambda net: recursive.all_reduce_by_doubling(
        net, data(), reduction()
    ),
    ("all_reduce", "halving"): lambda net: recursive.all_reduce_by_halving(
        net, data(), reduction()
    ),
    ("broadcast", "tree"): lambda net: tree.broadcast(net, data(), 0),
    ("broadcast", "scatter_gather"): lambda net: ring.broadcast(net, data(), 0),
    ("reduce", "tree"): lambda net: tree.reduce(net, data(), 0, reduction()),
    ("all_gather", "ring"): lambda net: ring.all_gather(net, parts(net), data()),
    ("all_gather", "bruck"): lambda net: recursive.all_gather(net, parts(net), data()),
    ("all_to_all", "pairwise"): lambda net: ring.all_to_all_pairwise(net, parts(net), parts(net)),
    ("barrier", "dissemination"): recursive.barrier,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("op", "algorithm"), DONE)
def test_messages_and_bytes_are_those_of_the_algorithm(op: str, algorithm: str, size: int) -> None:
    def body(net: ThreadTransport) -> tuple[int, int]:
        DONE[op, algorithm](net)
        return net.steps, net.sent_bytes

    counted = run_ranks(size, body)
    told = next(one for one in costs(signature(op, size), size) if one.algorithm == algorithm)
    assert told.rounds == max(steps for steps, _ in counted)
    most = max(sent for _, sent in counted)
    if op == "barrier":
        assert most == told.rounds  # a byte each, which counts as none
    elif op == "reduce":
        # One rank sends once; the one that is last has got them all, one after the other.
        assert (most, told.size_bytes) == (BYTES, told.rounds * BYTES)
    else:
        # Whoever stands in for a rank beyond the last power of two gets its data before it sends.
        stands_in = algorithm in ("doubling", "halving") and size & (size - 1)
        got = BYTES if stands_in else 0
        # Messages of unequal parts are rounded.
        assert told.size_bytes == pytest.approx(most + got, abs=4 * size)


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_a_cost(op: str) -> None:
    assert costs(Signature(op, FLOATS, peer=1 if op in ("send", "recv") else None), 4)
    assert costs(Signature(op, FLOATS), 1) == ()


def test_time_is_latency_and_bytes() -> None:
    link = Link(latency_us=5, bandwidth_gbs=10)
    assert link.time_us(Cost("ring", 14, 1e6)) == pytest.approx(14 * 5 + 100)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("bfloat16", 2),
        ("bool", 1),
        ("uint8", 1),
        ("int64", 8),
        ("complex64", 8),
        ("float8_e4m3fn", 1),
    ],
)
def test_bytes_of_an_element(dtype: str, size: int) -> None:
    assert item_bytes(dtype) == size

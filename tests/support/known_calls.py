"""Calls whose results are known: what each rank puts in is made from a seed that all ranks share,
so every rank computes by itself what must come out.

Used by the conformance suite (`conformance`), and by tests that draw calls at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distcore.base import reduction
from distcore.base.buffers import bytes_of
from distcore.base.reduction import reduction_for

_private: Any = dist  # whose stubs do not have all of it

DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
REDUCE_OPS = tuple(reduction.NAMES)
LAYOUTS = ("whole", "gapped", "transposed")
FACTOR = 2
"""The factor of PREMUL_SUM: exact in every type."""


def reduce_op(name: str) -> Any:
    """torch's ReduceOp of that name."""
    if name == "PREMUL_SUM":
        return _private._make_nccl_premul_sum(FACTOR)
    return getattr(dist.ReduceOp, name)


def can_reduce(op: str, dtype: str) -> bool:
    """Whether `distcore.base.reduction` has this op for this dtype."""
    try:
        reduction_for(reduce_op(op), getattr(torch, dtype))
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class KnownCall:
    """A call (a name in `CALLS`), the same on all ranks of a group.

    `root`: a group rank, taken modulo the group's size. `device`: of the tensors. `exact`: what is
    reduced are small whole numbers, with one sum in any order; else floats are compared closely.
    """

    op: str
    dtype: str = "float32"
    reduce_op: str = "SUM"
    shape: tuple[int, ...] = (5,)
    root: int = 0
    layout: str = "whole"
    use_async: bool = False
    exact: bool = True
    seed: int = 0
    device: str = "cpu"

    def run(self, group: Any = None, timeout_s: float = 60.0) -> bytes:
        """Make the call on this rank, which is in the group (None: the default one).

        What it gave, where that must be the same bits on all ranks, else nothing. Raises
        AssertionError for a wrong result, and whatever the call raises.
        """
        return CALLS[self.op](Making(self, group, timeout_s))


class Making:
    """A call in the making, on one rank."""

    def __init__(self, call: KnownCall, group: Any, timeout_s: float) -> None:
        self.call = call
        self.group = group
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(dist.get_rank())
        self.root = call.root % self.size
        self.dtype: torch.dtype = getattr(torch, call.dtype)
        self.count = torch.Size(call.shape).numel()
        self.timeout = timedelta(seconds=timeout_s)
        self.dice = random.Random(f"{call.seed} splits")

    # -- what goes in ------------------------------------------------------------------------------

    def anything(self, rank: int, shape: Sequence[int] | None = None, part: int = 0) -> Tensor:
        """Elements of any bits, to be moved."""
        shape = self.call.shape if shape is None else shape
        count = torch.Size(shape).numel()
        generator = torch.Generator().manual_seed(hash((self.call.seed, rank, part)) % 2**60)
        top = 2 if self.dtype is torch.bool else 256
        raw = torch.randint(
            0, top, (count * self.dtype.itemsize,), dtype=torch.uint8, generator=generator
        )
        return raw.view(self.dtype).reshape(tuple(shape))

    def numbers(self, rank: int, shape: Sequence[int] | None = None, part: int = 0) -> Tensor:
        """Elements to be reduced."""
        shape = tuple(self.call.shape if shape is None else shape)
        generator = torch.Generator().manual_seed(hash((self.call.seed, rank, part)) % 2**60)
        if self.dtype is torch.bool:
            return torch.randint(0, 2, shape, dtype=torch.uint8, generator=generator).bool()
        if self.call.exact or not (self.dtype.is_floating_point or self.dtype.is_complex):
            low, high = (1, 3) if self.call.reduce_op == "PRODUCT" else (0, 8)
            whole = torch.randint(low, high, shape, generator=generator)
            return whole.to(self.dtype)
        if self.dtype.is_complex:
            parts = torch.randn((*shape, 2), generator=generator, dtype=torch.float64)
            return torch.view_as_complex(parts).to(self.dtype)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)

    def laid_out(self, tensor: Tensor) -> Tensor:
        """Returns the same elements, in memory as the call wants them."""
        tensor = tensor.to(self.call.device)
        if self.call.layout == "gapped" and tensor.dim():
            shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
            view = torch.zeros(shape, dtype=self.dtype, device=tensor.device)[..., ::2]
            view.copy_(tensor)
            return view
        if self.call.layout == "transposed" and tensor.dim() > 1:
            return tensor.transpose(0, 1).contiguous().transpose(0, 1)
        return tensor.clone()

    def empty(self, shape: Sequence[int] | None = None) -> Tensor:
        """Memory for a result."""
        shape = tuple(self.call.shape if shape is None else shape)
        return self.laid_out(torch.full(shape, 1, dtype=torch.uint8).to(self.dtype))

    def splits(self) -> list[list[int]]:
        """Elements from each rank (first index) to each."""
        return [
            [self.dice.choice((0, 1, 3, self.count)) for _ in range(self.size)]
            for _ in range(self.size)
        ]

    # -- the call ----------------------------------------------------------------------------------

    def make(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call it, and wait where it is asynchronous."""
        work = function(*args, group=self.group, async_op=self.call.use_async, **kwargs)
        if self.call.use_async:
            assert work.wait(self.timeout), f"{self.call}: wait() gave False"
            assert work.is_completed(), f"{self.call}: not completed after wait()"

    # -- what comes out ----------------------------------------------------------------------------

    def same(self, found: Tensor, expected: Tensor, what: str = "the result") -> bytes:
        """Compare bits; the result's."""
        bits = _bits(found)
        if bits != _bits(expected):
            raise AssertionError(
                f"{self.call}: rank {self.rank} of {self.size}: {what} is wrong:\n{found}\n"
                f"expected:\n{expected}"
            )
        return bits

    def reduced(self, found: Tensor, parts: Sequence[Tensor]) -> bytes:
        """Compare with the reduction of all ranks' parts; the result's bits."""
        name = self.call.reduce_op
        reduction, found = reduction_for(reduce_op(name), self.dtype), found.cpu()
        floats = self.dtype.is_floating_point or self.dtype.is_complex
        if self.call.exact or not floats or name in ("MIN", "MAX"):
            total = reduction.prepare(parts[0].clone().contiguous())
            for part in parts[1:]:
                reduction.combine(total, reduction.prepare(part.clone().contiguous()))
            reduction.finish(total, len(parts))
            return self.same(found, total)
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        stack = torch.stack([part.to(wide) for part in parts])
        precise = stack.prod(0) if name == "PRODUCT" else stack.sum(0)
        precise = precise * (FACTOR if name == "PREMUL_SUM" else 1)
        precise = precise / (len(parts) if name == "AVG" else 1)
        if found.numel():
            scale = float(stack.abs().sum(0).max() * FACTOR) + float(precise.abs().max())
            off = float((found.to(wide) - precise).abs().max())
            limit = scale * len(parts) * torch.finfo(self.dtype).eps
            if not off <= limit:
                raise AssertionError(
                    f"{self.call}: rank {self.rank} of {self.size}: off by {off:g}, more than "
                    f"{limit:g}:\n{found}\nexpected:\n{precise}"
                )
        return _bits(found)


def _bits(tensor: Tensor) -> bytes:
    whole = tensor.detach().cpu().contiguous()  # a view of bytes does not keep its memory alive
    return bytes(bytes_of(whole))


def _newest(name: str, before: str) -> Any:
    """The older of the two names is deprecated since torch 2.13."""
    return getattr(dist, name, None) or getattr(dist, before)


# -- the calls -------------------------------------------------------------------------------------


def _all_reduce(m: Making) -> bytes:
    mine = m.laid_out(m.numbers(m.rank))
    m.make(dist.all_reduce, mine, op=reduce_op(m.call.reduce_op))
    return m.reduced(mine, [m.numbers(rank) for rank in range(m.size)])


def _reduce(m: Making) -> bytes:
    mine = m.laid_out(m.numbers(m.rank))
    op = reduce_op(m.call.reduce_op)
    m.make(dist.reduce, mine, dst=m.ranks[m.root], op=op)
    if m.rank == m.root:
        m.reduced(mine, [m.numbers(rank) for rank in range(m.size)])
    return b""


def _broadcast(m: Making) -> bytes:
    mine = m.laid_out(m.anything(m.rank))
    m.make(dist.broadcast, mine, src=m.ranks[m.root])
    return m.same(mine, m.anything(m.root))


def _all_gather(m: Making) -> bytes:
    parts = [m.empty() for _ in range(m.size)]
    m.make(dist.all_gather, parts, m.laid_out(m.anything(m.rank)))
    for rank, part in enumerate(parts):
        m.same(part, m.anything(rank), f"part {rank}")
    return b"".join(map(_bits, parts))


def _all_gather_into_tensor(m: Making) -> bytes:
    whole = torch.empty(m.size * m.count, dtype=m.dtype, device=m.call.device)
    mine = m.anything(m.rank).reshape(-1).to(m.call.device)
    m.make(_newest("all_gather_single", "all_gather_into_tensor"), whole, mine)
    return m.same(whole, torch.cat([m.anything(rank).reshape(-1) for rank in range(m.size)]))


def _gather(m: Making) -> bytes:
    parts = [m.empty() for _ in range(m.size)] if m.rank == m.root else None
    m.make(dist.gather, m.laid_out(m.anything(m.rank)), parts, dst=m.ranks[m.root])
    for rank, part in enumerate(parts or ()):
        m.same(part, m.anything(rank), f"part {rank}")
    return b""


def _gather_single(m: Making) -> bytes:
    whole = None
    if m.rank == m.root:
        whole = m.laid_out(torch.zeros((m.size, m.count), dtype=torch.uint8).to(m.dtype))
    m.make(_private.gather_single, m.laid_out(m.anything(m.rank)), whole, dst=m.ranks[m.root])
    if whole is not None:
        m.same(whole, torch.stack([m.anything(rank).reshape(-1) for rank in range(m.size)]))
    return b""


def _scatter(m: Making) -> bytes:
    parts = None
    if m.rank == m.root:
        parts = [m.laid_out(m.anything(m.root, part=rank)) for rank in range(m.size)]
    mine = m.empty()
    m.make(dist.scatter, mine, parts, src=m.ranks[m.root])
    m.same(mine, m.anything(m.root, part=m.rank))
    return b""


def _reduce_scatter(m: Making) -> bytes:
    shapes = [(m.dice.choice((0, 2, m.count)),) for _ in range(m.size)]
    mine = m.empty(shapes[m.rank])
    parts = [m.laid_out(m.numbers(m.rank, shape, part)) for part, shape in enumerate(shapes)]
    m.make(dist.reduce_scatter, mine, parts, op=reduce_op(m.call.reduce_op))
    m.reduced(mine, [m.numbers(rank, shapes[m.rank], m.rank) for rank in range(m.size)])
    return b""


def _reduce_scatter_tensor(m: Making) -> bytes:
    mine = m.empty((m.count,))
    whole = [m.numbers(rank, (m.size, m.count)) for rank in range(m.size)]
    op = reduce_op(m.call.reduce_op)
    function = _newest("reduce_scatter_single", "reduce_scatter_tensor")
    m.make(function, mine, whole[m.rank].reshape(-1).to(m.call.device), op=op)
    m.reduced(mine, [one[m.rank] for one in whole])
    return b""


def _all_to_all(m: Making) -> bytes:
    splits = m.splits()
    inputs = [
        m.laid_out(m.anything(m.rank, (splits[m.rank][to],), part=to)) for to in range(m.size)
    ]
    outputs = [m.empty((splits[rank][m.rank],)) for rank in range(m.size)]
    m.make(dist.all_to_all, outputs, inputs)
    for rank, part in enumerate(outputs):
        m.same(part, m.anything(rank, (splits[rank][m.rank],), part=m.rank), f"part {rank}")
    return b""


def _all_to_all_single(m: Making) -> bytes:
    splits = m.splits() if m.dice.random() < 0.7 else [[m.count] * m.size] * m.size
    even = len({tuple(row) for row in splits}) == 1 == len(set(splits[0]))

    def sent(rank: int) -> list[Tensor]:
        return [m.anything(rank, (splits[rank][to], 2), part=to) for to in range(m.size)]

    came = [row[m.rank] for row in splits]
    output = torch.empty((sum(came), 2), dtype=m.dtype, device=m.call.device)
    both = () if even else (came, splits[m.rank])
    m.make(dist.all_to_all_single, output, torch.cat(sent(m.rank)).to(m.call.device), *both)
    m.same(output, torch.cat([sent(rank)[m.rank] for rank in range(m.size)]))
    return b""


def _barrier(m: Making) -> bytes:
    m.make(dist.barrier)
    return b""


def _ring(m: Making) -> bytes:
    """Each sends two messages to the next, which takes them in the other order."""
    if m.size == 1:
        return b""
    after, before = (m.rank + 1) % m.size, (m.rank - 1) % m.size
    into = [m.empty(), m.empty()]
    works = [dist.irecv(into[tag], m.ranks[before], group=m.group, tag=tag) for tag in (1, 0)]
    for tag in (0, 1):
        data = m.laid_out(m.anything(m.rank, part=tag))
        works.append(dist.isend(data, m.ranks[after], group=m.group, tag=tag))
    for work in works:
        assert work is not None
        work.wait(m.timeout)
    for tag in (0, 1):
        m.same(into[tag], m.anything(before, part=tag), f"message {tag}")
    return b""


def _any_source(m: Making) -> bytes:
    """The root takes one message of every other rank, whoever is first; the tag keeps those of the
    next call apart, which a fast rank may have sent already."""
    tag = m.call.seed % 2**31
    if m.rank != m.root:
        dist.send(m.laid_out(m.anything(m.rank)), m.ranks[m.root], group=m.group, tag=tag)
        return b""
    left = set(range(m.size)) - {m.root}
    while left:
        into = m.empty()
        source = m.ranks.index(dist.recv(into, None, group=m.group, tag=tag))
        m.same(into, m.anything(source), f"the message of {source}")
        left.remove(source)
    return b""


def _batch(m: Making) -> bytes:
    """Everybody sends to everybody, at once."""
    peers = [rank for rank in range(m.size) if rank != m.rank]
    if not peers:
        return b""
    into = {peer: m.empty() for peer in peers}
    sends = [
        dist.P2POp(
            dist.isend, m.laid_out(m.anything(m.rank, part=peer)), m.ranks[peer], group=m.group
        )
        for peer in peers
    ]
    receives = [dist.P2POp(dist.irecv, into[peer], m.ranks[peer], m.group) for peer in peers]
    for work in dist.batch_isend_irecv(sends + receives):
        work.wait(m.timeout)
    for peer in peers:
        m.same(into[peer], m.anything(peer, part=m.rank), f"the message of {peer}")
    return b""


def _objects(m: Making) -> bytes:
    found: list[Any] = [None] * m.size
    mine = {"rank": m.rank, "data": _bits(m.anything(m.rank))}
    dist.all_gather_object(found, mine, group=m.group)
    for rank, one in enumerate(found):
        expected = {"rank": rank, "data": _bits(m.anything(rank))}
        assert one == expected, f"{m.call}: object {rank}: {one}, expected {expected}"
    return b""


_REDUCING = (_all_reduce, _reduce, _reduce_scatter, _reduce_scatter_tensor)
_FUNCTIONS = (
    *_REDUCING,
    _broadcast,
    _all_gather,
    _all_gather_into_tensor,
    _gather,
    _scatter,
    _all_to_all,
    _all_to_all_single,
    _barrier,
)
_OF_NEWER_RELEASES = (_gather_single,)
_PATTERNS = (_ring, _any_source, _batch, _objects)
CALLS: dict[str, Callable[[Making], bytes]] = {
    one.__name__[1:]: one
    for one in (*_FUNCTIONS, *_PATTERNS, *_OF_NEWER_RELEASES)
    if one not in _OF_NEWER_RELEASES or hasattr(dist, one.__name__[1:])
}
"""By name: functions of torch, patterns of messages and objects, and functions of torch that only
newer releases have."""
REDUCING = tuple(one.__name__[1:] for one in _REDUCING)

"""The calls that `bench comm` measures, and what they must give: a fast wrong answer is no figure.

Sizes are counted as nccl-tests counts them, in float32. Where every rank has its share of the
buffer, a size is rounded up to one that all ranks share evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

_ELEMENT_BYTES = 4
_SHARED = {"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"}


def true_size(op: str, size_bytes: int, ranks: int) -> int:
    """What a call of about `size_bytes` moves; 0 for a barrier."""
    if op == "barrier":
        return 0
    unit = _ELEMENT_BYTES * (ranks if op in _SHARED else 1)
    return max(1, -(-size_bytes // unit)) * unit


@dataclass(frozen=True)
class Call:
    """One operation on buffers of its own: `run(group)`, on every rank.

    With `fill`ed buffers, the output's equal parts hold the numbers `expected` after one run.
    """

    run: Callable[[Any], None]
    source: torch.Tensor
    target: torch.Tensor
    rank: int
    expected: torch.Tensor

    def is_right(self, group: Any) -> bool:
        """Run it once with numbers that tell; the buffers are zeros afterwards."""
        self.target.fill_(-1)
        self.source.fill_(self.rank + 1)
        self.run(group)
        right = self.target.view(len(self.expected), -1) == self.expected[:, None]
        self.source.zero_()  # what is summed in place over and over stays finite
        return bool(right.all())


def make(op: str, size_bytes: int, rank: int, ranks: int) -> Call:
    """The call for this rank. `size_bytes` comes from `true_size`."""
    count = size_bytes // _ELEMENT_BYTES
    total = torch.tensor([ranks * (ranks + 1) / 2])
    each = torch.arange(1.0, ranks + 1)
    following, preceding = (rank + 1) % ranks, (rank - 1) % ranks
    source = torch.empty(count)
    match op:
        case "all_reduce":
            return Call(partial(_all_reduce, source), source, source, rank, total)
        case "broadcast":
            return Call(partial(_broadcast, source), source, source, rank, each[:1])
        case "all_gather_into_tensor":
            part = torch.empty(count // ranks)
            return Call(partial(_all_gather, source, part), part, source, rank, each)
        case "reduce_scatter_tensor":
            part = torch.empty(count // ranks)
            return Call(partial(_reduce_scatter, part, source), source, part, rank, total)
        case "all_to_all_single":
            target = torch.empty(count)
            return Call(partial(_all_to_all, target, source), source, target, rank, each)
        case "send_recv":
            target = torch.empty(count)
            send = partial(_send_recv, source, target, following, preceding)
            return Call(send, source, target, rank, each[preceding : preceding + 1])
        case "barrier":
            nothing = torch.empty(0)
            return Call(_barrier, nothing, nothing, rank, torch.empty(1))
    raise ValueError(f"unknown operation {op!r}")


def _all_reduce(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def _broadcast(tensor: torch.Tensor, group: Any) -> None:
    dist.broadcast(tensor, group_src=0, group=group)


def _all_gather(target: torch.Tensor, source: torch.Tensor, group: Any) -> None:
    dist.all_gather_into_tensor(target, source, group=group)


def _reduce_scatter(target: torch.Tensor, source: torch.Tensor, group: Any) -> None:
    dist.reduce_scatter_tensor(target, source, group=group)


def _all_to_all(target: torch.Tensor, source: torch.Tensor, group: Any) -> None:
    dist.all_to_all_single(target, source, group=group)


def _send_recv(
    source: torch.Tensor, target: torch.Tensor, following: int, preceding: int, group: Any
) -> None:
    """In a ring, all at once, as nccl-tests' sendrecv does."""
    works = (
        dist.isend(source, group_dst=following, group=group),
        dist.irecv(target, group_src=preceding, group=group),
    )
    for work in works:
        assert work is not None
        work.wait()


def _barrier(group: Any) -> None:
    dist.barrier(group=group)

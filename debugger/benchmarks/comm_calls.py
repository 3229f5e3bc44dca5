"""The calls that `bench comm` measures on torch's backends, and whether they give what they must: a
fast wrong answer is no figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .comm_layout import layout, neighbours


@dataclass(frozen=True)
class Call:
    """An operation on buffers of its own: `run(group)`, on every rank.

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
        expected = self.expected.to(self.target.device)
        right = self.target.view(len(self.expected), -1) == expected[:, None]
        self.source.zero_()  # what is summed in place over and over stays finite
        return bool(right.all())


def make(
    op: str,
    size_bytes: int,
    rank: int,
    ranks: int,
    allocate: Callable[[int], torch.Tensor] = torch.empty,
) -> Call:
    """The call for this rank. `size_bytes` comes from `true_size`; `allocate` gives a tensor of so
    many float32."""
    plan = layout(op, size_bytes, rank, ranks)
    source = allocate(plan.source)
    target = source if plan.target is None else allocate(plan.target)
    run = _bind(op, source, target, *neighbours(rank, ranks))
    return Call(run, source, target, rank, torch.tensor(plan.expected))


def _bind(
    op: str, source: torch.Tensor, target: torch.Tensor, following: int, preceding: int
) -> Callable[[Any], None]:
    match op:
        case "all_reduce":
            return lambda group: dist.all_reduce(source, group=group)
        case "broadcast":
            return lambda group: dist.broadcast(source, group_src=0, group=group)
        case "all_gather_into_tensor":
            return lambda group: _gather_single(target, source, group=group)
        case "reduce_scatter_tensor":
            return lambda group: _scatter_single(target, source, group=group)
        case "all_to_all_single":
            return lambda group: dist.all_to_all_single(target, source, group=group)
        case "send_recv":
            return partial(_send_recv, source, target, following, preceding)
        case _:
            return lambda group: dist.barrier(group=group)


# By their new names, where this torch has them: the old ones then cost 5 us more, for a warning.
_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def _send_recv(
    source: torch.Tensor, target: torch.Tensor, following: int, preceding: int, group: Any
) -> None:
    """All at once, as nccl-tests' sendrecv does."""
    if source.is_cuda:
        # torch's NCCL keeps all messages of two ranks on one stream: each would wait for the other.
        both = [
            dist.P2POp(dist.isend, source, group=group, group_peer=following),
            dist.P2POp(dist.irecv, target, group=group, group_peer=preceding),
        ]
        for one in dist.batch_isend_irecv(both):
            one.wait()
        return
    works = (
        dist.isend(source, group_dst=following, group=group),
        dist.irecv(target, group_src=preceding, group=group),
    )
    for work in works:
        assert work is not None
        work.wait()

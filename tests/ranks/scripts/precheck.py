"""What ranks do within `distdebug.precheck()` and at its edges; each prints what came of it."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from _distdebug.rank.agreement import collectives
from _distdebug.rank.install import installed

import distdebug

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
odd = rank == 1
group: Any = None


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape or (4,))


def summed(tensor: torch.Tensor) -> float:
    dist.all_reduce(tensor, group=group)
    return float(tensor.flatten()[0])


def disputed() -> str:
    """A call of as many elements in another shape, which gloo computes."""
    tensor = ones(2, 2) if odd else ones()
    try:
        dist.all_reduce(tensor, group=group)
    except distdebug.MismatchError as error:
        return f"{error} sent {tensor.flatten().tolist()}"
    return "computed"


def outside() -> object:
    return disputed()


def inside() -> object:
    with distdebug.precheck():
        return disputed()


def behind() -> object:
    """The level and what belongs to it is what it was, also where the block was left by an error,
    and the first call behind it is the last that asks the other ranks."""
    layer, level = installed(), dist.get_debug_level()
    with contextlib.suppress(ValueError), distdebug.precheck():
        summed(ones())
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
        assert layer.level.is_detail()
        raise ValueError
    assert (dist.get_debug_level(), layer.level.current()) == (level, "INFO")
    said = [disputed(), disputed()]
    record = group._record
    assert (record.guard, record.inspect, record.holds) == (None, None, False)
    return said


def nested() -> object:
    with distdebug.precheck():
        with distdebug.precheck():
            summed(ones())
        return disputed()


def again() -> object:
    """A second block, in whose group the first one's channel is open."""
    said = []
    for _ in range(2):
        with distdebug.precheck():
            said.append(summed(ones()))
        said.append(summed(ones()))
    with distdebug.precheck():
        said.append(disputed())
    return said


def in_flight() -> object:
    """Rank 1 comes late to calls that the others have made within the block and behind it."""
    tensors = [ones() * number for number in (1, 10, 100, 1000)]
    with distdebug.precheck():
        summed(ones())
    if odd:
        dist.recv(torch.empty(1), 0)
    with distdebug.precheck():
        works = [dist.all_reduce(one, group=group, async_op=True) for one in tensors[:2]]
    works += [dist.all_reduce(one, group=group, async_op=True) for one in tensors[2:]]
    if rank == 0:
        dist.send(torch.ones(1), 1)
    for work in works:
        work.wait()
    return [one[0].item() for one in tensors]


def longer_on_one_rank() -> object:
    """The others make the last call, and one more, behind the block."""
    with distdebug.precheck():
        said = [summed(ones())]
        if odd:
            said.append(summed(ones()))
    if not odd:
        said.append(summed(ones()))
    return [*said, disputed()]


def skipped_by_one_rank() -> object:
    """The others are within the block still when it makes its next call behind it."""
    try:
        with distdebug.precheck():
            summed(ones())
            if not odd:
                summed(ones())
        dist.broadcast(ones(), 0, group=group)
    except distdebug.MismatchError as error:
        return str(error)
    return "nothing"


def entered_early_by_one_rank() -> object:
    """It waits for the others a while, and says that it goes on without them."""
    collectives.JOIN_S = 1.0
    if not odd:
        said = [summed(ones())]
    with distdebug.precheck():
        if odd:
            said = [summed(ones())]
        said.append(summed(ones()))
    return [*said, summed(ones())]


WAYS = [
    outside, inside, behind, nested, again, in_flight, longer_on_one_rank, skipped_by_one_rank,
    entered_early_by_one_rank,
]  # fmt: skip
for way in WAYS:
    group = dist.new_group(range(world))
    row = {"way": way.__name__, "rank": rank, "said": way()}
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
dist.destroy_process_group()

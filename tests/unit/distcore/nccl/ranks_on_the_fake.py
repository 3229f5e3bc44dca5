"""One rank on the stand-in for NCCL: the argument is what to do."""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[4]))

import distcore as dist
from tests.ranks.scripts import distcore_hooks
from tests.support.conformance import check_backend
from tests.support.fake_nccl import core
from tests.support.fake_nccl.backend import on_cuda, use
from tests.support.known_calls import DTYPES


def suite(rank: int, size: int) -> str:
    done = check_backend("distcore_nccl", DTYPES)
    return f"{len(done)} calls are right"


def more(rank: int, size: int) -> str:
    for dtype in (torch.float8_e5m2, torch.uint16, torch.uint32):
        for op, expected in ((dist.ReduceOp.SUM, 6), (dist.ReduceOp.MAX, 3)):
            tensor = torch.full((5,), rank + 1).to(dtype)
            dist.all_reduce(tensor, op)
            assert tensor.to(torch.int64).tolist() == [expected] * 5, (dtype, op, tensor)
    group: Any = dist.group.WORLD
    for factor in (2.0, 0.5):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        assert tensor.tolist() == [3 * factor] * 3
    (member,) = group._session.members()
    assert member.communicator._resources == []  # else one more with every such call
    calls: list[Any] = []
    split = core.Communicator.split
    core.Communicator.split = lambda *a: calls.append(a[1:3]) or split(*a)  # type: ignore[assignment, func-returns-value, method-assign]
    mine = dist.split_group(group, [[0, 2], [1]])
    assert mine is not None
    # The colour is the group's first rank; NCCL is asked, and no second id goes over the store.
    assert calls == [((0, 0), (1, 0), (0, 1))[rank]]
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (1 if rank == 1 else 2)
    left_out = dist.split_group(group, [[0, 1]])
    assert (left_out in (None, dist.GroupMember.NON_GROUP_MEMBER)) == (rank == 2)
    both = dist.new_group([0, 1], backend="nccl")
    if rank < 2:
        assert dist.get_backend(both) == "distcore_nccl"
        pair = [torch.tensor([rank, rank]), torch.zeros(2, dtype=torch.int64)]
        peer = 1 - rank
        ops = [
            dist.P2POp(dist.irecv, pair[1], peer, both),
            dist.P2POp(dist.isend, pair[0], peer, both),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert pair[1].tolist() == [peer, peer]
        wrong = dist.P2POp(dist.irecv, torch.zeros(2).to_sparse(), peer, both)
        with pytest.raises((TypeError, ValueError)):
            dist.batch_isend_irecv([ops[1], wrong])
        dist.all_reduce(pair[0], group=both)  # not gathered for a batch that is not made
        assert pair[0].tolist() == [1, 1]
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work.get_future().wait()[0].tolist() == [3.0] * 3
    dist.barrier()
    dist.monitored_barrier()
    return "split, float8, unsigned, mixed groups: right"


def hooks(rank: int, size: int) -> str:
    """What DDP and others do with futures."""
    for name, scenario in vars(distcore_hooks).items():
        if name.startswith("scenario_") and "a_later_call" not in name:
            scenario(rank, size)
    return "hooks and callbacks: right"


def combined(rank: int, size: int) -> str:
    """The CPU's tensors go to tcp, the GPU's to NCCL; `device_id` connects the latter at once."""
    group: Any = dist.group.WORLD
    assert dist.get_backend() == "cpu:tcp,cuda:distcore_nccl"
    nccl = group._get_backend(torch.device("cuda"))
    assert type(nccl).__name__ == "NcclGroup"
    assert len(nccl._session.members()) == 1
    assert nccl._session.calls == 0
    for place, sent in ((torch.Tensor.clone, 0), (on_cuda, 1)):
        tensor = place(torch.full((4,), float(rank + 1)))
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0] * 4
        assert nccl._session.calls == sent
    outputs = list(on_cuda(torch.zeros(4)).chunk(size))  # a copy would need a GPU
    dist.all_gather(outputs, on_cuda(torch.full((2,), float(rank))))
    assert [one.tolist() for one in outputs] == [[0.0] * 2, [1.0] * 2]
    arrives = on_cuda(torch.zeros(3))
    ops = [
        dist.P2POp(dist.isend, on_cuda(torch.full((3,), float(rank))), 1 - rank),
        dist.P2POp(dist.irecv, arrives, 1 - rank),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert arrives.tolist() == [float(1 - rank)] * 3
    assert nccl._session.calls == 3, nccl
    assert dist.all_gather_object(said := [None] * size, rank) is None
    assert said == [0, 1]
    dist.barrier()
    dist.monitored_barrier()
    again: Any = dist.new_group([0, 1])
    tensor = on_cuda(torch.ones(1))
    dist.all_reduce(tensor, group=again)
    assert tensor.item() == 2.0
    half: Any = dist.split_group(group, [[1, 0]])
    assert len(half._get_backend(torch.device("cuda"))._session.members()) == 1
    for place, calls in ((torch.Tensor.clone, 0), (on_cuda, 1)):
        tensor = place(torch.ones(1))
        dist.all_reduce(tensor, group=half)
        assert tensor.item() == 2.0
        assert half._get_backend(torch.device("cuda"))._session.calls == calls
    return "tcp and NCCL together: right"


def main() -> None:
    faulthandler.dump_traceback_later(80, exit=True)
    warnings.filterwarnings("ignore", "ComplexHalf")
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    both = sys.argv[1] == "combined"
    if both:
        accelerator: Any = torch.accelerator
        accelerator.current_accelerator = lambda: torch.device("cuda")
        accelerator.device_count = lambda: 1
    use(*(("cuda",) if both else ()))
    dist.init_process_group(
        "cpu:tcp,cuda:nccl" if both else "nccl",
        device_id=torch.device("cuda", 0) if both else None,
    )
    said = {"suite": suite, "more": more, "hooks": hooks, "combined": combined}[sys.argv[1]](
        rank, size
    )
    dist.destroy_process_group()
    print(said)


if __name__ == "__main__":
    main()

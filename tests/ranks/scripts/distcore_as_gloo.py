"""Scenarios of test_distcore_backend.py: several tensors a rank, and errors in the words of torch's
gloo, which programs look for."""

import torch
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ScatterOptions,
)

import distcore as dist
from tests.ranks.scripts.distcore_support import SECONDS, raises


def _options(kind, **fields):
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def scenario_several_tensors(rank, size):
    group = dist.group.WORLD
    values = torch.arange(2.0 * size) + 1
    for op, expected in (
        (dist.ReduceOp.SUM, values.sum()),
        (dist.ReduceOp.PRODUCT, values.prod()),
        (dist.ReduceOp.MIN, values.min()),
        (dist.ReduceOp.MAX, values.max()),
    ):
        pair = [torch.full((3, 2), values[2 * rank]).t(), torch.full((2, 3), values[2 * rank + 1])]
        work = group.allreduce(pair, _options(AllreduceOptions, reduceOp=op))
        assert all((one == expected).all() for one in work.get_future().wait()), op
        assert all((one == expected).all() for one in pair), op
    # Ranks may differ in how many they have.
    mine = [torch.ones(4) for _ in range(rank + 1)]
    group.allreduce(mine).wait()
    assert all((one == size * (size + 1) / 2).all() for one in mine)
    for root in range(size):
        for which in (0, 1):
            pair = [torch.full((5,), 10.0 * rank), torch.full((5,), 10.0 * rank + 1)]
            group.broadcast(
                pair, _options(BroadcastOptions, rootRank=root, rootTensor=which)
            ).wait()
            assert all((one == 10.0 * root + which).all() for one in pair)
    for count in (2, 3):
        mine = [torch.full((2,), count * rank + index) for index in range(count)]
        rows = [[torch.full((2,), -1) for _ in range(count * size)] for _ in range(count)]
        group.allgather(rows, mine).wait()
        for row in rows:
            assert [one.tolist() for one in row] == [[i, i] for i in range(count * size)]


def scenario_several_sparse_tensors(rank, size):
    def sparse(index, value):
        return torch.sparse_coo_tensor([[index, 2 * size]], [value, 1.0], (2 * size + 1,))

    pair = [sparse(2 * rank, 1.0), sparse(2 * rank + 1, 2.0)]
    dist.group.WORLD.allreduce(pair).wait()
    expected = torch.tensor([1.0, 2.0] * size + [2.0 * size])
    assert all(torch.equal(one.to_dense(), expected) for one in pair)


def scenario_words_of_wrong_calls(rank, size):
    group, one, wide = dist.group.WORLD, torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    two, coo = torch.zeros(2), torch.zeros(2).to_sparse()
    root = {"rootRank": rank}
    for words, call, *given in (
        ("invalid root rank", group.broadcast, [one], _options(BroadcastOptions, rootRank=-1)),
        ("invalid root rank", group.broadcast, [one], _options(BroadcastOptions, rootRank=size)),
        ("invalid root tensor", group.broadcast, [one],
         _options(BroadcastOptions, **root, rootTensor=1)),
        ("invalid root tensor", group.broadcast, [], _options(BroadcastOptions, **root)),
        ("invalid tensor type", group.broadcast, [one, wide], _options(BroadcastOptions, **root)),
        ("invalid tensor size", group.broadcast, [one, two], _options(BroadcastOptions, **root)),
        ("requires non-empty tensor list", group.allreduce, []),
        ("invalid tensor type", group.allreduce, [one, wide]),
        ("invalid tensor size", group.allreduce, [one, two]),
        ("invalid tensor layout", group.allreduce, [two, coo]),
        ("unsupported layout", group.allreduce_coalesced, [coo, coo]),
        ("unsupported reduction operation", group.allreduce, [coo],
         _options(AllreduceOptions, reduceOp=dist.ReduceOp.MAX)),
        ("for several tensors", group.allreduce, [one, one],
         _options(AllreduceOptions, reduceOp=dist.ReduceOp.AVG)),
        ("invalid root tensor", group.reduce, [one], _options(ReduceOptions, **root, rootTensor=1)),
        ("requires a single-element tensor list", group.reduce, [one, one],
         _options(ReduceOptions, **root)),
        ("requires a single-element output tensor list", group.scatter, [one, one], [],
         _options(ScatterOptions, rootRank=0)),
        ("requires a single-element input list", group.scatter, [one], [],
         _options(ScatterOptions, **root)),
        (f"Incorrect input list size {size + 1}. Input list size should be {size}",
         group.scatter, [one], [[one] * (size + 1)], _options(ScatterOptions, **root)),
        ("requires empty input on non-root", group.scatter, [one], [[one] * size],
         _options(ScatterOptions, rootRank=(rank + 1) % size)),
        ("requires a single-element input tensor list", group.gather, [], [one, one],
         _options(GatherOptions, rootRank=0)),
        (f"Incorrect output list size {size - 1}. Output list size should be {size}",
         group.gather, [[one] * (size - 1)], [one], _options(GatherOptions, **root)),
        ("invalid tensor size", group.gather, [[two] * size], [one],
         _options(GatherOptions, **root)),
        ("requires input/output tensor lists to have the same length", group.allgather, [], [one],
         AllgatherOptions()),
        ("invalid output tensor list at index 0", group.allgather, [[one] * (size + 1)], [one],
         AllgatherOptions()),
        ("invalid tensor type", group.allgather, [[wide] * size], [one], AllgatherOptions()),
    ):  # fmt: skip
        with raises(RuntimeError, words):
            call(*given)
        with raises((ValueError, TypeError), words):
            call(*given)
    dist.barrier()  # nothing was sent


def scenario_words_of_failures(rank, size):
    late = dist.new_group()
    late.set_timeout(0.3 * SECONDS)
    if rank:
        with raises(RuntimeError, "timed out after 300ms"):
            dist.barrier(late)
    dist.barrier()
    lost = dist.new_group()
    dist.barrier(lost)
    if rank == 0:
        lost.shutdown()
    else:
        with raises(RuntimeError, "Connection closed by peer"):
            dist.all_reduce(torch.ones(1), group=lost)
    dist.barrier()

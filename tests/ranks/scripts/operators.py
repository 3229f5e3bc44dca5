"""Calls every operator of torch's that communicates, past the functions of torch.distributed; what
each puts on record stands between two sums of as many elements as the operator's place in ORDER."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import ops

sys.path.insert(0, os.environ["DISTDEBUG_TESTED"])
from tests.ranks.scripts.distcore_operators import CALLS, functional_operators

BOXED = {}
UNCALLED = {"c10d::check_for_nan"}
"""Which look at tensors alone."""


def boxed(name):
    def register(function):
        BOXED[name] = function
        return function

    return register


def of(rank, count=2):
    return torch.arange(float(count)) + 10 * rank


def total(size, count=2):
    return sum(of(rank, count) for rank in range(size))


def summed():
    return torch.classes.c10d.ReduceOp()


def equal(found, expected):
    assert torch.equal(found, expected), (found, expected)


def ended(result):
    """The outputs of an operator once its work is waited for."""
    *given, work = result if isinstance(result, tuple) else (result,)
    work.wait()
    return given[0] if given else None


@boxed("allreduce_")
def all_reduce(op, box, rank, size):
    equal(ended(op([of(rank)], box, summed(), None))[0], total(size))
    with torch.inference_mode():
        given = of(rank)
        ended(op([given], box, summed(), None, False, 30_000))
    equal(given, total(size))


@boxed("allreduce_coalesced_")
def all_reduce_coalesced(op, box, rank, size):
    given = [of(rank, 1), of(rank, 3)]
    ended(op(given, box, summed()))
    equal(given[1], total(size, 3))


@boxed("broadcast_")
def broadcast(op, box, rank, _size):
    equal(ended(op([of(rank)], box, 1, 0))[0], of(1))


@boxed("reduce_")
def reduce(op, box, rank, size):
    given = of(rank)
    ended(op([given], box, summed(), 1, 0))
    if rank == 1:
        equal(given, total(size))


@boxed("allgather_")
def all_gather(op, box, rank, size):
    into = [torch.empty(2) for _ in range(size)]
    ended(op([into], [of(rank)], box))
    equal(into[1], of(1))


@boxed("_allgather_base_")
def all_gather_base(op, box, rank, size):
    into = torch.empty(2 * size)
    equal(ended(op(into, of(rank), box)), torch.cat([of(each) for each in range(size)]))


@boxed("allgather_coalesced_")
def all_gather_coalesced(op, box, rank, size):
    into = [[torch.empty(2)] for _ in range(size)]
    ended(op(into, [of(rank)], box))
    equal(into[1][0], of(1))


@boxed("allgather_into_tensor_coalesced_")
def all_gather_into_tensor_coalesced(op, box, rank, size):
    into = [torch.empty(2 * size)]
    ended(op(into, [of(rank)], box))
    equal(into[0], torch.cat([of(each) for each in range(size)]))


@boxed("_reduce_scatter_base_")
def reduce_scatter_base(op, box, rank, size):
    found = ended(op(torch.empty(1), of(rank, size), box, summed()))
    equal(found, total(size, size)[rank : rank + 1])


@boxed("reduce_scatter_")
def reduce_scatter(op, box, rank, size):
    into = [torch.empty(1)]
    ended(op(into, [list(of(rank, size).chunk(size))], box, summed()))
    equal(into[0], total(size, size)[rank : rank + 1])


@boxed("reduce_scatter_tensor_coalesced_")
def reduce_scatter_coalesced(op, box, rank, size):
    into = [torch.empty(1)]
    ended(op(into, [of(rank, size)], box, summed()))
    equal(into[0], total(size, size)[rank : rank + 1])


@boxed("gather_")
def gather(op, box, rank, size):
    into = [torch.empty(2) for _ in range(size)]
    ended(op([into] if rank == 1 else [], [of(rank)], box, 1))
    if rank == 1:
        equal(into[0], of(0))


@boxed("gather_into_tensor_")
def gather_into_tensor(op, box, rank, size):
    into = torch.empty(2 * size)
    ended(op(into, of(rank), box, 1))


@boxed("scatter_")
def scatter(op, box, rank, size):
    rows = [[of(each) for each in range(size)]] if rank == 1 else []
    equal(ended(op([torch.empty(2)], rows, box, 1))[0], of(rank))


@boxed("alltoall_")
def all_to_all(op, box, rank, size):
    into = list(torch.empty(size).chunk(size))
    ended(op(into, list(of(rank, size).chunk(size)), box))
    equal(torch.cat(into), torch.stack([of(each, size)[rank] for each in range(size)]))


@boxed("alltoall_base_")
def all_to_all_base(op, box, rank, size):
    into = torch.empty(size)
    ended(op(into, of(rank, size), box, [1] * size, [1] * size))
    equal(into, torch.stack([of(each, size)[rank] for each in range(size)]))


@boxed("barrier")
def barrier(op, box, rank, _size):
    ended(op(of(rank), box, []))


@boxed("monitored_barrier_")
def monitored_barrier(op, box, rank, _size):
    op(of(rank), box, [], 30_000, True)


@boxed("send")
@boxed("recv_")
@boxed("recv_any_source_")
def messages(op, box, rank, _size):
    into = torch.empty(2)
    if rank == 0:
        ended(ops.c10d.send([of(0)], box, 1, 3))
    elif "any" in str(op):
        ended(ops.c10d.recv_any_source_([into], box, 3))
    else:
        ended(ops.c10d.recv_([into], box, 0, 3))
    if rank == 1:
        equal(into, of(0))


def operators():
    """All that this torch has, by their names."""
    names = {one.name for one in torch._C._jit_get_all_schemas()}
    return {name for name in names if name.startswith("c10d::")} - UNCALLED


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    if os.environ.get("DISTDEBUG_BESIDE"):  # a group whose backend has kernels of its own
        dist.barrier(dist.new_group(backend=os.environ["DISTDEBUG_BESIDE"]))
    missing = operators() - {f"c10d::{name}" for name in BOXED}
    missing |= functional_operators() - set(CALLS)
    assert not missing, missing
    order = []
    for name in [*sorted(CALLS), *(f"c10d::{one}" for one in sorted(BOXED))]:
        space, _, short = name.partition("::")
        operator = getattr(getattr(ops, space), short, None)
        if operator is None:
            continue  # of another release
        order.append(name)
        dist.all_reduce(torch.zeros(len(order), dtype=torch.int32))
        try:
            if space == "c10d":
                BOXED[short](operator, world.boxed(), rank, size)
            else:
                CALLS[name](operator, rank, size, world.group_name)
        except RuntimeError as error:
            if "gloo does not support" not in str(error) and "not implement" not in str(error):
                raise AssertionError(name) from error
            order[-1] += " refused"
    dist.all_reduce(torch.zeros(len(order) + 1, dtype=torch.int32))
    sys.stdout.write(json.dumps(order) + "\n")
    dist.destroy_process_group()


main()

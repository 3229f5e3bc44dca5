"""Scenarios of test_distcore_backend.py: torch's operators that take a group, called past the
functions of torch.distributed, as compiled code calls them."""

import torch
import torch.distributed._functional_collectives
from torch import ops

import distcore as dist
from tests.ranks.scripts.distcore_support import raises

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
NO_CALLS = {
    "_c10d_functional::wait_tensor",  # called below with every other one
    "_c10d_functional::_wrap_tensor_autograd",
    "_dtensor::mesh_get_process_group",
}


def functional_operators():
    """Of the namespaces whose operators find the group by its name."""
    names = {one.name for one in torch._C._jit_get_all_schemas()}
    return {name for name in names if name.partition("::")[0] in NAMESPACES} - NO_CALLS


CALLS = {}


def calls(name):
    def register(function):
        CALLS[name] = function
        return function

    return register


def _of(rank, count=2):
    return torch.arange(float(count)) + 10 * rank


def _waited(tensor):
    return ops._c10d_functional.wait_tensor(tensor)


def _gathered(size, count=2):
    return torch.cat([_of(rank, count) for rank in range(size)])


def _total(size, count=2):
    return sum(_of(rank, count) for rank in range(size))


def _equal(found, expected):
    assert torch.equal(found, expected), (found, expected)


@calls("_c10d_functional::wait_tensors")  # from torch 2.15 on
def _wait_tensors(op, rank, size, name):
    begun = [ops._c10d_functional.all_reduce(_of(rank), "sum", name) for _ in range(2)]
    for found in op(begun):
        _equal(found, _total(size))


@calls("_c10d_functional::all_reduce")
@calls("_c10d_functional::all_reduce_")
def _all_reduce(op, rank, size, name):
    _equal(_waited(op(_of(rank), "sum", name)), _total(size))


@calls("_c10d_functional::all_reduce_coalesced")
@calls("_c10d_functional::all_reduce_coalesced_")
def _all_reduce_coalesced(op, rank, size, name):
    for count, found in enumerate(op([_of(rank, 1), _of(rank, 2)], "sum", name), 1):
        _equal(_waited(found), _total(size, count))


@calls("_c10d_functional::broadcast")
@calls("_c10d_functional::broadcast_")
def _broadcast(op, rank, size, name):
    _equal(_waited(op(_of(rank), 1, name)), _of(1))


@calls("_c10d_functional::all_gather_into_tensor")
@calls("_c10d_functional_autograd::all_gather_into_tensor")
def _all_gather(op, rank, size, name):
    _equal(_waited(op(_of(rank), size, name)), _gathered(size))


@calls("_c10d_functional::all_gather_into_tensor_out")
def _all_gather_out(op, rank, size, name):
    out = torch.empty(2 * size)
    found = op(_of(rank), size, name, out=out)
    assert found.data_ptr() == out.data_ptr()
    _equal(_waited(found), _gathered(size))
    _equal(out, _gathered(size))


@calls("_c10d_functional::all_gather_into_tensor_coalesced")
def _all_gather_coalesced(op, rank, size, name):
    for count, found in enumerate(op([_of(rank, 1), _of(rank, 2)], size, name), 1):
        _equal(_waited(found), _gathered(size, count))


@calls("_c10d_functional::reduce_scatter_tensor")
@calls("_c10d_functional_autograd::reduce_scatter_tensor")
def _reduce_scatter(op, rank, size, name):
    found = _waited(op(_of(rank, 2 * size), "sum", size, name))
    _equal(found, _total(size, 2 * size).chunk(size)[rank])


@calls("_c10d_functional::reduce_scatter_tensor_out")
def _reduce_scatter_out(op, rank, size, name):
    out = torch.empty(2)
    _waited(op(_of(rank, 2 * size), "sum", size, name, out=out))
    _equal(out, _total(size, 2 * size).chunk(size)[rank])


@calls("_c10d_functional::reduce_scatter_tensor_coalesced")
def _reduce_scatter_coalesced(op, rank, size, name):
    inputs = [_of(rank, size), _of(rank, 2 * size)]
    for count, found in enumerate(op(inputs, "sum", size, name), 1):
        _equal(_waited(found), _total(size, count * size).chunk(size)[rank])


@calls("_c10d_functional::all_to_all_single")
@calls("_c10d_functional_autograd::all_to_all_single")
def _all_to_all(op, rank, size, name):
    found = _waited(op(_of(rank, size), [1] * size, [1] * size, name))
    _equal(found, torch.stack([_of(other, size)[rank] for other in range(size)]))


@calls("_dtensor::shard_dim_alltoall")
def _shard_dim(op, rank, size, name):
    found = op(_of(rank, size).unsqueeze(0), 0, 1, name)
    _equal(found, torch.stack([_of(other, size)[rank : rank + 1] for other in range(size)]))


def _pair(rank):
    """The first two ranks exchange; nobody else takes part."""
    return 1 - rank if rank < 2 else None


@calls("_c10d_functional::isend")
@calls("_c10d_functional::irecv")
def _messages(_op, rank, size, name):
    peer = _pair(rank)
    if peer == 1:
        _waited(ops._c10d_functional.isend(_of(rank), peer, 3, name))
    elif peer == 0:
        _equal(_waited(ops._c10d_functional.irecv(torch.empty(2), peer, 3, name)), _of(0))


@calls("_c10d_functional::batch_p2p_ops")
def _batch(op, rank, size, name):
    peer = _pair(rank)
    if peer is not None:
        into = torch.empty(2)
        found = op(["isend", "irecv"], [peer, peer], [0, 0], [_of(rank), into], name)
        for one in found:
            _waited(one)
        _equal(found[1], _of(peer))


def scenario_operators(rank, size):
    """On a group of ours, and on one of torch's beside it, which its own kernels serve."""
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        for name in sorted(CALLS):
            space, _, short = name.partition("::")
            operator = getattr(getattr(ops, space), short, None)
            if operator is None:
                continue  # of another release
            try:
                CALLS[name](operator, rank, size, group.group_name)
            except BaseException as error:
                raise AssertionError(f"{name} on {group!r}") from error
            dist.barrier(group)


def scenario_every_operator_is_called(rank, size):
    """A new one of torch's must be tried."""
    assert functional_operators() <= set(CALLS), functional_operators() - set(CALLS)


def scenario_operators_that_take_a_group_itself(rank, size):
    """Those of torch's C++ groups alone: torch.distributed asks ours itself. They refuse."""
    group = dist.group.WORLD
    for operator, *given in (
        (ops.c10d._allgather_base_, torch.empty(2 * size), _of(rank), group.boxed()),
        (ops.c10d.alltoall_base_, torch.empty(size), _of(rank, size), group.boxed(), [], []),
        (ops.c10d.barrier, _of(rank), group.boxed(), []),
        (ops.c10d.send, [_of(rank)], group.boxed(), 0, 0),
    ):
        with raises(RuntimeError, "No backend type associated with device type cpu"):
            operator(*given)
    dist.barrier()


def scenario_a_wrong_batch_of_messages(rank, size):
    """It leaves nothing behind that would be taken for part of the next call."""
    if hasattr(ops._c10d_functional, "batch_p2p_ops"):  # torch 2.11 has none
        with raises(RuntimeError, "another rank"):
            name = dist.group.WORLD.group_name
            ops._c10d_functional.batch_p2p_ops(["isend"], [rank], [0], [_of(rank)], name)
    work = dist.all_reduce(_of(rank), async_op=True)
    assert work.wait()

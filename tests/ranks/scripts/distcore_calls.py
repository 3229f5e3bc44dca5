"""Scenarios of test_distcore_backend.py: every call, with results known beforehand."""

import torch

import distcore as dist
from tests.ranks.scripts.distcore_support import SECONDS, call, gapped, of, raises

since = torch.torch_version.TorchVersion


def scenario_collectives(rank, size):
    total = sum(of(other) for other in range(size))
    for use_async in (False, True):
        for shape in (lambda t: t.clone(), gapped, lambda t: t.clone().requires_grad_()):
            tensor = shape(of(rank))
            call(dist.all_reduce, tensor, use_async=use_async)
            assert torch.equal(tensor.detach(), total)
            tensor = shape(of(rank))
            call(dist.broadcast, tensor, src=1, use_async=use_async)
            assert torch.equal(tensor.detach(), of(1))
            tensor = shape(of(rank))
            call(dist.reduce, tensor, dst=1, use_async=use_async)
            assert rank != 1 or torch.equal(tensor.detach(), total)
        for shape in (lambda t: t.clone(), gapped):
            parts = [shape(of(9)) for _ in range(size)]
            call(dist.all_gather, parts, shape(of(rank)), use_async=use_async)
            assert all(torch.equal(part, of(other)) for other, part in enumerate(parts))
            whole = shape(torch.zeros(size, 6))
            call(dist.all_gather_into_tensor, whole, shape(of(rank)), use_async=use_async)
            assert all(torch.equal(whole[other], of(other)) for other in range(size))
            parts = [shape(of(9)) for _ in range(size)] if rank == 1 else None
            call(dist.gather, shape(of(rank)), parts, dst=1, use_async=use_async)
            assert rank != 1 or all(torch.equal(parts[i], of(i)) for i in range(size))
            output = shape(of(9))
            inputs = [shape(of(other)) for other in range(size)] if rank == 1 else None
            call(dist.scatter, output, inputs, src=1, use_async=use_async)
            assert torch.equal(output, of(rank))
            inputs = [shape(of(rank) + other) for other in range(size)]
            call(dist.reduce_scatter, output, inputs, use_async=use_async)
            assert torch.equal(output, total + size * rank)
            stacked = shape(torch.stack(list(inputs)))
            output = shape(of(9))
            call(dist.reduce_scatter_tensor, output, stacked, use_async=use_async)
            assert torch.equal(output, total + size * rank)
            outputs = [shape(of(9)) for _ in range(size)]
            call(dist.all_to_all, outputs, inputs, use_async=use_async)
            assert all(torch.equal(outputs[i], of(i) + rank) for i in range(size))
            output = shape(torch.zeros(size, 6))
            call(dist.all_to_all_single, output, stacked, use_async=use_async)
            assert all(torch.equal(output[i], of(i) + rank) for i in range(size))
        call(dist.barrier, use_async=use_async)


def scenario_uneven(rank, size):
    parts = [torch.zeros(other) for other in range(size)]
    dist.all_gather(parts, torch.full((rank,), float(rank)))
    assert all((part == other).all() for other, part in enumerate(parts))
    output = torch.zeros(rank)
    dist.reduce_scatter(output, [torch.ones(other) for other in range(size)])
    assert (output == size).all()
    sends = [other + rank for other in range(size)]
    data = torch.cat([torch.full((n,), 10 * rank + i) for i, n in enumerate(sends)])
    output = torch.zeros(sum(sends), dtype=data.dtype)
    dist.all_to_all_single(output, data, sends, sends)
    expected = [torch.full((n,), 10 * i + rank) for i, n in enumerate(sends)]
    assert torch.equal(output, torch.cat(expected))


def scenario_odd_tensors(rank, size):
    for tensor in (torch.zeros(0), torch.zeros(3, 0), torch.tensor(1.0)):
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.all_gather([torch.empty_like(tensor) for _ in range(size)], tensor)
    assert tensor == size
    tensor = torch.view_as_complex(torch.ones(2, 2)).conj().imag  # lazily negated
    assert tensor.is_neg()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((2,), -float(size)))
    tensor = torch.full((2, 3), rank == 0)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    assert tensor.all()
    sparse = (torch.eye(4) * (rank + 1)).to_sparse()
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.eye(4) * size * (size + 1) / 2)
    with torch.inference_mode():
        tensor = gapped(of(rank))
    with torch.inference_mode():
        dist.all_reduce(tensor, async_op=True).wait()
    assert torch.equal(tensor, sum(of(other) for other in range(size)))


def scenario_coalesced(rank, size):
    group = dist.group.WORLD
    tensors = [torch.ones(3), gapped(torch.ones(2, 2)), torch.ones(1, dtype=torch.int64)]
    tensors += [torch.ones(100_000), torch.ones(100_000), torch.ones(())]
    group.allreduce_coalesced(tensors).wait()
    assert all((tensor == size).all() for tensor in tensors)
    outputs = [torch.zeros(size, 2), torch.zeros(size, 3, dtype=torch.int64)]
    group.allgather_into_tensor_coalesced(
        outputs, [torch.full((2,), float(rank)), torch.full((3,), rank)]
    ).wait()
    assert all((output[i] == i).all() for output in outputs for i in range(size))
    outputs = [torch.zeros(2), torch.zeros(3)]
    inputs = [torch.ones(size, 2), torch.ones(size, 3)]
    group.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    assert all((output == size).all() for output in outputs)
    rows = [[torch.zeros(2), torch.zeros(1)] for _ in range(size)]
    group.allgather_coalesced(rows, [torch.full((2,), float(rank)), torch.zeros(1)]).wait()
    assert all((rows[i][0] == i).all() for i in range(size))
    with torch.distributed.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        ones = [torch.ones(2) for _ in range(3)]
        for tensor in ones:
            dist.all_reduce(tensor)
    manager.wait()
    assert all((tensor == size).all() for tensor in ones)
    group._start_coalescing(torch.device("cpu"))
    works = [dist.all_reduce(tensor, async_op=True) for tensor in ones]
    joined = group._end_coalescing(torch.device("cpu"))
    assert joined.wait()
    assert all(work.is_completed() for work in works)
    assert len(joined.get_future().wait()) == 3


def scenario_messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1, 100_000):
        sent, got = torch.full((count,), float(rank)), torch.zeros(count, 2)[:, 1]
        operations = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert (got == before).all()
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            got = torch.zeros(2)
            source = dist.recv(got, tag=7)
            assert (got == source).all()
            sources.add(source)
        assert sources == set(range(1, size))
    else:
        dist.send(torch.full((2,), float(rank)), 0, tag=7)
    if rank == 0:
        second, first = torch.zeros(1), torch.zeros(1)
        works = [dist.irecv(second, 1, tag=2), dist.irecv(first, 1, tag=1)]
        with raises(dist.DeadlineExceeded, "recv(src=1, float32[1], tag=2)", "it goes on"):
            works[0].wait(0.05 * SECONDS)
        dist.barrier()
        for work in works:
            work.wait()
        assert (first.item(), second.item()) == (1, 2)
        assert works[0].get_future().wait()[0] is second
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0, tag=1)
            dist.send(torch.full((1,), 2.0), 0, tag=2)
    if rank == 0:
        dist.send_object_list(["a", {"b": 1}], 1)
    elif rank == 1:
        objects = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects == ["a", {"b": 1}]


def scenario_objects(rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": i} for i in range(size)]
    objects = ["x", 1] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects)
    assert objects == ["x", 1]
    mine = [None]
    dist.scatter_object_list(mine, list("abcdefgh")[:size] if rank == 0 else None)
    assert mine == ["abcdefgh"[rank]]
    objects = [None] * size if rank == 0 else None
    dist.gather_object(rank, objects)
    assert rank != 0 or objects == list(range(size))


def scenario_groups(rank, size):
    group = dist.new_group([1, 0], timeout=20 * SECONDS)
    if rank < 2:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor == 2
        dist.broadcast(tensor, src=1, group=group)
        assert "rank" in repr(group)
        assert dist.get_backend(group) == dist.get_backend()
        assert dist.get_process_group_ranks(group) == [0, 1]
    group = dist.split_group(split_ranks=[[0], list(range(1, size))])
    assert group.size() == (1 if rank == 0 else size - 1)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    assert tensor == group.size()
    dist.destroy_process_group(group)
    member = torch.distributed.GroupMember
    outside = None if torch.__version__ < since("2.15") else member.NON_GROUP_MEMBER
    assert dist.split_group(split_ranks=[[0]]) == outside or rank == 0
    backwards = list(range(size))[::-1]
    group = dist.split_group(split_ranks=[backwards])
    keeps_order = torch.__version__ >= since("2.14")
    ranks = backwards if keeps_order else sorted(backwards)
    assert dist.get_process_group_ranks(group) == ranks
    assert group.rank() == ranks.index(rank)
    for backend in (dist.get_backend(group), torch.distributed.get_backend_config(group)):
        assert dist.split_group(group, [ranks], backend=backend).size() == size
    with raises(ValueError, "split with all"):
        dist.split_group(group, [[0]], backend="cpu:gloo")
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    assert mesh.get_group("all").size() == size

"""A rank under mpiexec: `distcore_mpi.py SCENARIO...`, one after the other in one process."""

import json
import os
import signal
import sys
import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import distcore  # noqa: F401 - registers the backend
from distcore.engine.call_queue import CallQueue
from tests.ranks.scripts import (
    distcore_as_gloo,
    distcore_calls,
    distcore_hooks,
    distcore_layers,
    distcore_operators,
)
from tests.ranks.scripts.distcore_support import raises
from tests.support.conformance import check_backend

LIMIT_S = 3.0
"""Of calls that run into it; of all others `LONG_S`, which a crowded machine does not need."""
LONG_S = 100.0
OF_TCP = {"scenario_again"}
"""They make groups on tcp."""


def say(name, **more):
    rank = dist.get_rank() if dist.is_initialized() else -1
    line = json.dumps({"rank": rank, "name": name, **more}) + "\n"
    os.write(1, line.encode())  # at once, so that lines of several ranks do not mix


def expect(name, call):
    """Make a call that must fail."""
    at = time.monotonic()
    try:
        call()
    except Exception as error:
        say(
            name,
            kind=type(error).__name__,
            text=str(error),
            culprit=getattr(error, "culprit", None),
            after_s=time.monotonic() - at,
        )
    else:
        say(name, kind=None)


def limited(group, limit_s):
    """The group, with this limit from now on: it was made, and has moved data, without it."""
    group.set_timeout(timedelta(seconds=limit_s))
    return group


def come(name, rank):
    """Tell those who `await_ranks`."""
    with open(f"{os.environ['TMPDIR']}/{name}.{rank}", "x"):
        pass


def await_ranks(name, *ranks):
    """Until they have come so far."""
    while not all(os.path.exists(f"{os.environ['TMPDIR']}/{name}.{rank}") for rank in ranks):
        time.sleep(0.005)


def scenario_facts(rank, size):
    assert dist.is_mpi_available()
    assert dist.get_backend() == "mpi"
    config = dist.get_backend_config(dist.group.WORLD)
    say("facts", size=size, repr=repr(dist.group.WORLD), config=str(config))


def scenario_conformance(rank, size):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support")
        say("conformance", calls=len(check_backend("mpi")))


def scenario_groups(rank, size):
    local = dist.new_group([rank], use_local_synchronization=True)
    one = torch.ones(2)
    dist.all_reduce(one, group=local)
    assert one.tolist() == [1, 1]
    assert dist.get_backend(local) == "mpi"
    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    dist.all_reduce(one, group=mesh.get_group("all"))
    assert one.tolist() == [size, size]
    halves = dist.split_group(split_ranks=[[r] for r in range(size)])
    assert halves.size() == 1
    tcp = dist.new_group(backend="tcp")
    dist.all_reduce(one, group=tcp)
    assert dist.get_backend(tcp) == "tcp"
    composite = dist.new_group(backend="cpu:mpi")
    dist.barrier(composite)
    dist.monitored_barrier()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [found["rank"] for found in objects] == list(range(size))


def scenario_same_bits(rank, size):
    """Zeros of both signs, and numbers whose sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        for count in (3, 100_003, 600_000):
            for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
                if dtype.is_complex and op not in ("SUM", "AVG"):
                    continue
                mine = torch.randn(count, generator=generator).to(dtype)
                mine[::7] = -0.0 if rank % 2 else 0.0
                if op in ("MIN", "MAX"):
                    mine[1::11] = float("nan") if rank == 0 else 1.0
                dist.all_reduce(mine, getattr(dist.ReduceOp, op))
                if op in ("MIN", "MAX"):
                    assert mine[1].isnan(), (dtype, count, op)
                bits = mine.view(torch.uint8)
                first = bits.clone()
                dist.broadcast(first, 0)
                assert torch.equal(bits, first), (dtype, count, op)


def scenario_tags(rank, size):
    from mpi4py import MPI

    most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    for tag in (0, 5, most, most // 2, most - 1, most):
        if rank == 0:
            dist.send(torch.tensor([tag]), 1, tag=tag)
        elif rank == 1:
            into = torch.tensor([0])
            dist.recv(into, 0, tag=tag)
            assert into.item() == tag
    if most < 2**31 - 1:
        with raises(ValueError, f"this MPI has none above {most}"):
            dist.send(torch.zeros(1), (rank + 1) % size, tag=most + 1)


def scenario_in_order(rank, size):
    """Asynchronous calls of several groups and threads do not disturb each other."""
    other = dist.new_group()
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 1000, 400_000) for _ in range(5)]
    works = [
        dist.all_reduce(one, group=(None, other)[index % 2], async_op=True)
        for index, one in enumerate(tensors)
    ]
    mine = torch.ones(4)

    def beside():
        for _ in range(20):
            dist.broadcast(mine, 0, group=third)

    third = dist.new_group()
    thread = threading.Thread(target=beside)
    thread.start()
    for work in works:
        work.wait()
    thread.join()
    total = sum(range(1, size + 1))
    assert all((one == total).all() for one in tensors)
    message = torch.zeros(3_000_000)
    if rank == 0:
        work = dist.isend(torch.ones(3_000_000), 1)
        while not work.is_completed():  # it gets on without a wait
            time.sleep(0.001)
    elif rank == 1:
        dist.recv(message, 0)
        assert (message == 1).all()


def scenario_absent(rank, size):
    """The deadline names who did not come, after which nothing works any more."""
    absent("absent", rank, torch.ones(8))


def scenario_absent_large(rank, size):
    absent("absent_large", rank, torch.ones(1_000_000))


def absent(name, rank, data):
    """Rank 1 is there as long as the others wait for it, who begin together."""
    limited(dist.group.WORLD, LIMIT_S)
    if rank != 1:
        come(f"{name} begins", rank)
        await_ranks(f"{name} begins", 0, 2)
        expect(name, lambda: dist.all_reduce(data))
        expect("again", lambda: dist.all_reduce(data))
        come(name, rank)
    await_ranks(name, 0, 2)


def scenario_calls_and_layers(rank, size):
    """What is tried on tcp as well: the calls in their forms, and what torch builds on them."""
    parts = distcore_calls, distcore_layers, distcore_hooks, distcore_operators, distcore_as_gloo
    for part in parts:
        for name in list(vars(part)):
            if name.startswith("scenario_") and name not in OF_TCP:
                getattr(part, name)(rank, size)
                say(name)


def scenario_late(rank, size):
    """The twin of `absent`: slow, but in time."""
    if rank == 1:
        time.sleep(LIMIT_S / 2)
    for count in (8, 1_000_000):
        data = torch.ones(count)
        dist.all_reduce(data)
        assert (data == size).all()
    say("late", kind=None)


def scenario_mismatch(rank, size):
    """Of much data the ranks meet first; for little MPI has no check, and may not hang either."""
    data = torch.ones(1_000_000)
    group = dist.new_group(timeout=timedelta(seconds=30))
    if rank == 1:
        expect("mismatch", lambda: dist.reduce(data, 0, group=group))
    else:
        expect("mismatch", lambda: dist.all_reduce(data, group=group))


def scenario_abort(rank, size):
    group = dist.new_group(timeout=timedelta(seconds=60))
    if rank == 1:
        time.sleep(0.3)  # the others are on their way, or not: both are fine
        group.abort()
    else:
        expect("abort", lambda: dist.all_reduce(torch.ones(4), group=group))


def scenario_stopped(rank, size):
    """A rank that stops in a big call, when all have met in it and its data is not on its way."""
    group = dist.new_group(timeout=timedelta(seconds=LONG_S))
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    big = torch.ones(16_000_000)
    dist.all_reduce(big, group=group)
    assert (big == size).all()
    say("moved")
    limited(group, LIMIT_S)
    if rank == 1:
        submit = CallQueue.submit

        def stop_first(*given):
            os.kill(os.getpid(), signal.SIGSTOP)
            submit(*given)

        CallQueue.submit = stop_first
    expect("stopped", lambda: dist.all_reduce(big, group=group))
    if rank == 2:
        come("stopped", rank)
    if rank == 0:
        await_ranks("stopped", 2)  # whose deadline may be a little later
        os.kill(pids[1], signal.SIGCONT)


def scenario_splits(rank, size):
    """Some ranks' parts are alike, others' not, and they need not know of each other."""
    for scale in (1, 100_000):
        counts = [
            [(source + target) % 2 * scale for target in range(size)] for source in range(size)
        ]
        counts[0] = [scale] * size
        given = torch.full((sum(counts[rank]),), rank, dtype=torch.int64)
        into = [counts[source][rank] for source in range(size)]
        found = torch.full((sum(into),), -1, dtype=torch.int64)
        ours = None if rank == 0 else counts[rank]
        dist.all_to_all_single(found, given, into, ours)
        assert found.tolist() == [s for s in range(size) for _ in range(into[s])]
        same = torch.arange(size * scale)
        dist.all_to_all_single(same, same)
        assert (same.view(size, -1) == torch.arange(size * scale).view(size, -1)[rank]).all()
    nothing = torch.empty(0)
    dist.all_to_all_single(nothing, nothing)


def scenario_wait(rank, size):
    """wait(timeout) gives up, and the call goes on."""
    data = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(data, async_op=True)
        expect("wait", lambda: work.wait(timedelta(seconds=0.2)))
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(torch.ones(1), 0)
        dist.all_reduce(data)
    assert (data == size).all()


def scenario_recv(rank, size):
    group = limited(dist.new_group(timeout=timedelta(seconds=LONG_S)), 1.0)
    if rank == 0:
        expect("recv", lambda: dist.recv(torch.ones(4), 1, group=group))
    dist.barrier()
    short = torch.zeros(2)
    if rank == 0:
        dist.send(torch.ones(4), 1)
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        expect("too_long", lambda: dist.recv(short, 0))
        expect("too_short", lambda: dist.recv(short, 0))


def scenario_raises(rank, size):
    """An exception ends one rank; the others hear of it at once."""
    if rank == 1:
        raise ValueError("the first cause")
    expect("raises", lambda: dist.all_reduce(torch.ones(4)))
    sys.exit(1)


def scenario_killed(rank, size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expect("killed", lambda: dist.all_reduce(torch.ones(4)))


def scenario_huge(rank, size):
    """More bytes than an int counts."""
    count = 2**31 + 5000
    data = torch.zeros(count, dtype=torch.uint8)
    if rank == 0:
        data[0] = data[2**31] = data[-1] = 7
    dist.broadcast(data, 0)
    assert (data[0], data[2**31], data[-1]) == (7, 7, 7)
    dist.all_reduce(data)
    assert (data[0].item(), data[2**31].item(), data[-1].item(), data[5].item()) == (14, 14, 14, 0)
    if rank == 0:
        dist.send(data, 1)
    elif rank == 1:
        data.zero_()
        dist.recv(data, 0)
        assert (data[0].item(), data[-1].item()) == (14, 14)
    del data
    part = torch.full((2**30 + 3000,), rank, dtype=torch.uint8)
    whole = torch.empty(part.numel() * size, dtype=torch.uint8)
    dist.all_gather_into_tensor(whole, part)
    assert (whole[0].item(), whole[-1].item()) == (0, size - 1)
    dist.reduce_scatter_tensor(part, whole)
    assert part[0].item() == part[-1].item() == size * rank
    del part
    parts = list(whole.chunk(size))
    received = [torch.empty_like(part) for part in parts]
    whole.fill_(rank)
    dist.all_to_all(received, parts)
    assert [one[-1].item() for one in received] == list(range(size))
    flat = torch.zeros_like(whole)
    dist.all_to_all_single(flat, whole)
    assert [one[-1].item() for one in flat.chunk(size)] == list(range(size))


for name in sys.argv[1:]:
    dist.init_process_group("mpi", timeout=timedelta(seconds=LONG_S))
    globals()[f"scenario_{name}"](dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
say("end")

"""At DETAIL, with no supervisor: rank 1 of 3 makes another call than the others, in many ways.

Prints, for each rank and way, what was raised (or `fine`), where, and what the tensor held after.
"""

import json
import os
import sys
import threading
import time
import traceback

import pytest
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
odd = rank == 1
pair = dist.new_group([0, 1], group_desc="the pair")
shaken = dist.new_group([0, 1, 2])
t = torch.empty(4)


def kind():
    dist.broadcast(t, 0) if odd else dist.all_reduce(t)


def reduce_op():
    dist.all_reduce(t, op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)


def root():
    dist.broadcast(t, src=1 if odd else 0)


def dtype_of_equal_bytes():
    dist.all_reduce(t.view(torch.int32) if odd else t)


def count():
    dist.all_reduce(t[:3] if odd else t)


def shape():
    dist.all_reduce(t.view(2, 2) if odd else t)


def splits():
    into = torch.empty(3 if odd else 4)
    sends = [0, 2, 2] if rank == 0 else [2, 1, 1]
    receives = {0: [0, 2, 2], 1: [1, 1, 1], 2: [2, 1, 1]}[rank]
    dist.all_to_all_single(into, t, receives, sends)


def asynchronous():
    work = dist.all_reduce(t[:3] if odd else t, async_op=True)
    work.wait()


def raised_by_the_call_itself():
    dist.barrier()
    work = dist.all_reduce(t[:3] if odd else t, async_op=True)
    raise AssertionError(f"the call gave {work}")


def coalesced():
    with dist._coalescing_manager():
        dist.all_reduce(t)
        dist.all_reduce(t[:3] if odd else t)


def objects():
    dist.broadcast_object_list([None], src=1 if odd else 0)


def of_a_pair():
    """The world waits elsewhere."""
    if rank == 2:
        dist.barrier()
        return
    try:
        dist.all_reduce(t[:3] if odd else t, group=pair)
    finally:
        dist.barrier()


def in_a_thread():
    failed = []

    def call():
        try:
            dist.all_reduce(t[:3] if odd else t, group=shaken)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    dist.all_reduce(torch.ones(2))  # on another group, at the same time
    thread.join()
    if failed:
        raise failed[0]


def a_message_before_the_others_come():
    """Legal, since the call returns at once: rank 1 comes to it after the message."""
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        dist.send(torch.ones(2), 1)
        work.wait()
    elif odd:
        dist.recv(torch.empty(2), 0)
        dist.all_reduce(t)
    else:
        dist.all_reduce(t, async_op=True).get_future().wait()


def message_too_large():
    """gloo would kill the receiver."""
    if rank == 0:
        dist.send(t, 1)
    elif odd:
        dist.recv(t[:3], 0)


def message_too_small():
    """gloo would say nothing."""
    if rank == 0:
        dist.send(t[:3], 1, tag=5)
    elif odd:
        dist.recv(t, 0, tag=5)


def message_of_another_dtype():
    if rank == 0:
        dist.send(t, 1, group=pair)
    elif odd:
        dist.recv(t.view(torch.int32), 0, group=pair)


def messages_crossing():
    """Posted in other orders than they are waited for."""
    inbox = {(peer, tag): torch.empty(tag + 1) for peer in range(world) for tag in range(3)}
    outbox = {key: torch.full((key[1] + 1,), 1.0 + rank) for key in inbox}
    works = []
    for (peer, tag), tensor in inbox.items():
        if peer != rank:
            works.append(dist.irecv(tensor, peer, tag=tag))
    for (peer, tag), tensor in reversed(outbox.items()):
        if peer != rank:
            works.append(dist.isend(tensor, peer, tag=tag))
    for work in reversed(works):
        work.wait()
    assert all((inbox[peer, tag] == 1 + peer).all() for peer, tag in inbox if peer != rank)
    t.fill_(3.0)


def messages_from_any():
    """Which send meets which receive is not known, then or later."""
    for _ in range(3):
        for _ in range(2):
            if rank == 0:
                got = torch.empty(2)
                source = dist.recv(got)
                assert got[0] == source
        if rank:
            dist.send(torch.full((2,), float(rank)), 0)
    dist.barrier()
    for peer in (1, 2):
        if rank == 0:
            dist.recv(torch.empty(2), peer)
        elif rank == peer:
            dist.send(torch.full((2,), float(rank)), 0)
    t.fill_(3.0)


def burst_into_any_source():
    """Three sends are on their way when the first receive tells that none is compared."""
    if rank == 0:
        time.sleep(0.3)
        for _ in range(6):
            dist.recv(torch.empty(2), tag=8)
    else:
        for work in [dist.isend(torch.ones(2), 0, tag=8) for _ in range(3)]:
            work.wait()
    dist.barrier()
    t.fill_(3.0)


def from_one_rank_then_from_any():
    """The receive that was posted first gets the first message."""
    if rank == 1:
        first, second = torch.empty(1), torch.empty(1)
        works = [dist.irecv(first, 2, tag=9), dist.irecv(second, tag=9)]
        dist.barrier()
        for work in works:
            work.wait()
        assert (first.item(), second.item()) == (1.0, 2.0)
    else:
        dist.barrier()
    if rank == 2:
        dist.send(torch.tensor([1.0]), 1, tag=9)
        dist.send(torch.tensor([2.0]), 1, tag=9)
    t.fill_(3.0)


def refused_by_gloo_in_the_call_itself():
    dist.barrier()
    try:
        work = dist.all_gather([torch.ones(3)] * world, t, async_op=True)
    except (RuntimeError, ValueError):
        t.fill_(3.0)
    else:
        raise AssertionError(f"the call gave {work}")


def refused_by_gloo_and_sent_again():
    if rank == 2:
        for wrong in (torch.ones(4, 4).t()[:, :2], torch.ones(4, 4).to_sparse()):
            with pytest.raises(RuntimeError):
                dist.send(wrong, 0, tag=10)
        dist.send(torch.ones(4, 4), 0, tag=11)
    if rank == 0:
        dist.recv(torch.empty(16), 2, tag=11)
    t.fill_(3.0)


def all_alike():
    dist.all_reduce(t)
    dist.all_reduce(t[:2], group=shaken)


WAYS = [
    kind, reduce_op, root, dtype_of_equal_bytes, count, shape, splits, asynchronous, coalesced,
    raised_by_the_call_itself, refused_by_gloo_in_the_call_itself, objects, of_a_pair,
    in_a_thread, a_message_before_the_others_come, message_too_large,
    message_too_small, message_of_another_dtype, messages_crossing, messages_from_any,
    burst_into_any_source, from_one_rank_then_from_any, refused_by_gloo_and_sent_again, all_alike,
]  # fmt: skip
for way in WAYS:
    t.fill_(rank)
    line = None
    try:
        way()
        said = "fine"
    except (RuntimeError, AssertionError) as error:
        said = f"{type(error).__name__}: {error}"
        rows = traceback.extract_tb(error.__traceback__)
        line = [row.line for row in rows if row.filename == __file__][-1]
    result = {"way": way.__name__, "rank": rank, "said": said, "line": line, "t": t.tolist()}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
dist.set_debug_level_from_env()
dist.all_reduce(t.view(2, 2) if odd else t)  # gloo computes
before = dist.get_debug_level()
dist.set_debug_level(dist.DebugLevel.DETAIL)
assert (before, dist.get_debug_level()) == (dist.DebugLevel.INFO, dist.DebugLevel.DETAIL)
late = dist.new_group([0, 1, 2])
for group in (None, late):
    with pytest.raises(RuntimeError, match="shape_mismatch"):
        dist.all_reduce(t.view(2, 2) if odd else t, group=group)
dist.destroy_process_group()

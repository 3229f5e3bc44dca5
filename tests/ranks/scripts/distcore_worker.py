"""A rank of a group on tcp that does what it is told: see `main`, and tests.support.crew."""

import contextlib
import ctypes
import gc
import hashlib
import json
import os
import random
import signal
import threading
import time
import traceback
from datetime import timedelta

import psutil
import torch

import distcore as dist
from tests.support.known_calls import (
    CALLS,
    DTYPES,
    LAYOUTS,
    REDUCE_OPS,
    REDUCING,
    KnownCall,
    can_reduce,
)

GROUPS = []
"""The default group (None) and sub-groups, as (ranks, group); group is None where not a member."""


def command_init(rank, size, path, timeout_s=20.0, groups=()):
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "tcp", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timeout
    )
    make_groups(rank, size, groups, timeout_s)


def make_groups(rank, size, groups, timeout_s=20.0):
    """`GROUPS`, with these sub-groups."""
    GROUPS[:] = [(list(range(size)), dist.group.WORLD)]
    for ranks in groups:
        group = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s))
        GROUPS.append((ranks, group if rank in ranks else None))


def command_destroy(rank, size):
    dist.destroy_process_group()
    GROUPS.clear()


def command_calls(rank, size, calls):
    """[[index of the group, the fields of a KnownCall], ...]"""
    digests = []
    for index, fields in calls:
        ranks, group = GROUPS[index % len(GROUPS)]
        if rank in ranks:
            call = KnownCall(**{**fields, "shape": tuple(fields["shape"])})
            digests.append(hashlib.blake2b(call.run(group), digest_size=8).hexdigest())
        else:
            digests.append("")
    return {"digests": digests}


def command_all_reduces(rank, size, count=1, until_error=False, elements=200_000, group=0):
    """How the loop ended, if by an error."""
    tensor = torch.ones(elements)

    def call():
        dist.all_reduce(tensor.fill_(1.0), group=GROUPS[group][1])
        assert (tensor == len(GROUPS[group][0])).all(), tensor

    return repeated(call, count, until_error)


def command_begin_all_reduces(rank, size, count, elements=200_000):
    """Which it never waits for."""
    for _ in range(count):
        dist.all_reduce(torch.ones(elements), async_op=True)


def command_broadcast(rank, size, src, elements, use_async=False):
    """Of sevens."""
    tensor = torch.full((elements,), 7.0 if rank == src else 0.0)
    dist.broadcast(tensor, src, async_op=use_async)
    assert use_async or (tensor == 7.0).all()


def command_all_gather(rank, size):
    """In which each rank waits for every other one itself."""
    return repeated(lambda: dist.all_gather(list(torch.ones(size, 9)), torch.ones(9)), 1, False)


def repeated(call, count, until_error):
    began = time.monotonic()
    try:
        while until_error or count:
            call()
            count -= 1
    except dist.GroupFailed as error:
        return {
            "kind": type(error).__name__,
            "culprit": error.culprit,
            "text": str(error),
            "took_s": time.monotonic() - began,
        }
    return {"kind": "", "took_s": time.monotonic() - began}


def command_processor_time_of_a_barrier(rank, size, late, late_s, path):
    """Rank `late` comes that much later than the last of the others; `path`: for their files."""
    others = [f"{path}.{one}" for one in range(size) if one != late]
    while rank == late and not all(map(os.path.exists, others)):
        time.sleep(0.01)
    if rank == late:
        time.sleep(late_s)
    before, began = os.times(), time.monotonic()
    with open(f"{path}.{rank}", "x"):
        dist.barrier()
    after = os.times()
    used_s = after.user + after.system - before.user - before.system
    return {"used_s": used_s, "took_s": time.monotonic() - began}


def command_abort_while_waiting(rank, size):
    """From a thread, while this rank is in a call that cannot end."""
    group = dist.group.WORLD

    def abort():
        while group._session._mesh._call is None:
            time.sleep(0.01)
        group.abort()

    threading.Thread(target=abort).start()
    return command_all_reduces(rank, size)


def command_fork(rank, size):
    """A child that lives on with copies of all that is open here."""
    child = os.fork()
    if not child:
        while True:
            signal.pause()
    return {"child": child}


def command_two_threads(rank, size, rounds):
    """Each thread uses a group of its own."""
    errors = []

    def work(index):
        try:
            for number in range(rounds):
                call = ("all_reduce", "all_to_all_single", "ring", "broadcast")[number % 4]
                shape = (random.Random(f"{index} {number}").choice((3, 5000, 90_000)),)
                asynchronous = number % 3 == 0
                KnownCall(call, shape=shape, seed=number, root=number, use_async=asynchronous).run(
                    GROUPS[index][1]
                )
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(index,)) for index in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(errors)


def command_large(rank, size, size_bytes):
    """Every element is checked."""
    count = size_bytes // 8
    tensor = torch.arange(count, dtype=torch.int64) + rank
    dist.all_reduce(tensor)
    expected = torch.arange(count, dtype=torch.int64).mul_(size).add_(sum(range(size)))
    assert torch.equal(tensor, expected)


def drawn(dice):
    """Any call, of a shape that is small more often than not."""
    op = dice.choice(list(CALLS))
    pairs = _REDUCIBLE if op in REDUCING else [("SUM", dtype) for dtype in DTYPES]
    reduce_op, dtype = dice.choice(pairs)
    shape = dice.choice([(), (0,), (1,), (7,), (33, 5), (3, 700), (9_001,), (70_001,)])
    return KnownCall(
        op,
        dtype=dtype,
        reduce_op=reduce_op,
        shape=shape,
        root=dice.randrange(8),
        layout=dice.choice(LAYOUTS),
        use_async=dice.random() < 0.4,
        exact=dice.random() < 0.5,
        seed=dice.randrange(2**30),
    )


_REDUCIBLE = [(op, dtype) for op in REDUCE_OPS for dtype in DTYPES if can_reduce(op, dtype)]


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def give_back_what_is_freed():
    """Have the allocator keep no tensors, and make no heaps for new threads: what is not given back
    is of tens of megabytes at times, and would be taken for a leak."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    libc.mallopt(_M_ARENA_MAX, 1)


def usage():
    # No leak is what the allocator keeps for later, nor the memory shared with peers, whose slots
    # are first touched by the first long messages: both are tens of megabytes.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    me = psutil.Process()
    memory = me.memory_info()
    return {
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "memory_bytes": memory.rss - memory.shared,
    }


def command_soak(rank, size, seconds, seed):
    """Random calls on all groups, on two threads with groups of their own each, with random small
    delays. What the process used after the first fifth of the time, and at the end."""
    give_back_what_is_freed()
    mine, others = GROUPS[0::2], GROUPS[1::2]
    for _ranks, group in GROUPS:  # every connection and every thread that there will ever be
        if group is not None:
            for op in ("all_reduce", "batch"):
                KnownCall(op, use_async=True).run(group)
    made, errors = [0, 0], []

    def stream(index, groups, length_s):
        dice, own = random.Random(f"{seed} {index} {length_s}"), random.Random(f"{seed} {rank}")
        until, number = time.monotonic() + length_s, 0
        try:
            while True:
                ranks, group = dice.choice(groups)
                call = drawn(dice)
                if rank in ranks:
                    if own.random() < 0.1:
                        time.sleep(own.random() * 0.003)
                    call.run(group)
                    made[index] += 1
                number += 1
                if number % 50 == 0:  # rank 0 says whether they go on
                    _ranks, group = groups[0]
                    going = torch.tensor([time.monotonic() < until])
                    dist.broadcast(going, 0, group=group)
                    if not going:
                        return
                if index == 0 and number % 200 == 0:
                    extra = dist.new_group([1, 0, 2])
                    if rank < 3:
                        KnownCall("all_reduce", use_async=True).run(extra)
                        KnownCall("ring").run(extra)
                        dist.destroy_process_group(extra)
        except BaseException:
            errors.append(traceback.format_exc())

    readings = []
    for length_s in (seconds / 5, seconds * 4 / 5):
        threads = [
            threading.Thread(target=stream, args=(index, groups, length_s))
            for index, groups in enumerate((mine, others))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, "\n".join(errors)
        dist.barrier()
        readings.append(usage())
    return {"made": made, "before": readings[0], "after": readings[1]}


def main(rank, size, channel):
    """Do what comes over the channel, a JSON object {"command": ..., arguments} a line, and answer
    with one. "exit" ends the process as a program ends, with its groups open."""
    torch.set_num_threads(1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for line in channel.makefile():
            arguments = json.loads(line)
            name = arguments.pop("command")
            if name == "exit":
                return
            try:
                answer = globals()[f"command_{name}"](rank, size, **arguments) or {}
            except BaseException:
                answer = {"traceback": traceback.format_exc()}
            channel.sendall(json.dumps(answer).encode() + b"\n")

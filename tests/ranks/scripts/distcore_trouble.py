"""Scenarios of test_distcore_backend.py: mistakes, missing ranks, interruptions, threads."""

import math
import signal
import threading
import time

import torch

import distcore as dist
from tests.ranks.scripts.distcore_support import SECONDS, raises


def scenario_bad_arguments(rank, size):
    group = dist.group.WORLD
    bad = "on rank "
    with raises(ValueError, f"all_reduce {bad}{rank}: tensor", "own memory"):
        dist.all_reduce(torch.zeros(1).expand(4))
    with raises(ValueError, f"all_gather {bad}{rank}: tensor_list", f"{size} tensors", "given 1"):
        dist.all_gather([torch.zeros(1)], torch.zeros(1))
    with raises(ValueError, f"output: expected {3 * size} elements"):
        dist.all_gather_into_tensor(torch.zeros(1), torch.zeros(3))
    with raises(ValueError, "input_split_sizes", "add up to"):
        dist.all_to_all_single(torch.zeros(size), torch.zeros(size), [1] * size, [2] * size)
    with raises(ValueError, "output_split_sizes", "negative"):
        splits = [-1, *[1] * (size - 2), 2]
        dist.all_to_all_single(torch.zeros(size), torch.zeros(size), splits, [1] * size)
    with raises(ValueError, "dst", "another rank"):
        group.send([torch.zeros(1)], rank, 0)
    with raises(ValueError, "root"):
        group.broadcast(torch.zeros(1), size)
    with raises(ValueError, "device"):
        dist.broadcast(torch.zeros(1, device="meta"), 0)
    with raises(ValueError, "a dense tensor"):
        dist.broadcast(torch.eye(2).to_sparse(), 0)
    with raises((TypeError, ValueError), "BAND", "float32"):
        dist.all_reduce(torch.zeros(1), dist.ReduceOp.BAND)
    dist.barrier()  # nothing was sent


def scenario_monitored_barrier(rank, size):
    dist.monitored_barrier(timeout=20 * SECONDS)
    if rank == 0:
        others = ", ".join(map(str, range(1, size)))
        with raises(RuntimeError, f"Ranks {others} failed to pass monitoredBarrier in 50 ms"):
            dist.monitored_barrier(timeout=0.05 * SECONDS, wait_all_ranks=True)
        with raises(RuntimeError, "Rank 1 failed to pass monitoredBarrier in 50 ms"):
            dist.monitored_barrier(timeout=0.05 * SECONDS)
        for other in range(1, size):
            dist.send(torch.ones(1), other)
    else:
        dist.recv(torch.ones(1), 0)  # too late on purpose: the answer is there already
        with raises(RuntimeError, f"Rank {rank} successfully reached monitoredBarrier", "rank 0"):
            dist.monitored_barrier(timeout=5 * SECONDS, wait_all_ranks=True)
        with raises(RuntimeError, f"Rank {rank} successfully reached monitoredBarrier", "rank 0"):
            dist.monitored_barrier(timeout=5 * SECONDS)
    dist.barrier()


def scenario_mismatch(rank, size):
    group = dist.new_group()
    both = ("all_reduce(sum, float32[4])", "all_gather(float32[2])", "#0")
    with raises(dist.CallMismatch, *both):
        if rank == 0:
            dist.all_gather([torch.zeros(2) for _ in range(size)], torch.zeros(2), group=group)
        else:
            dist.all_reduce(torch.zeros(2, 2), group=group)
    with raises(dist.GroupFailed, "cannot be used any more", "CallMismatch", "all_reduce"):
        dist.barrier(group)
    with raises(dist.GroupFailed, "cannot be used any more"):
        dist.barrier(group, async_op=True)
    assert "failed" in repr(group)
    dist.barrier()
    dist.destroy_process_group(group)


def scenario_deadline(rank, size):
    group = dist.new_group()
    group.set_timeout(2 * SECONDS)
    began = math.inf
    if rank != 0:
        began = time.monotonic()
        works = [dist.all_reduce(torch.zeros(2), group=group, async_op=True) for _ in range(3)]
        future = works[2].get_future()
        with raises(dist.DeadlineExceeded, "all_reduce(sum, float32[2]) #0", "rank 0"):
            works[0].wait()
        ended = time.monotonic()
        assert ended - began < 20
        with raises(dist.GroupFailed, "cannot be used any more"):
            works[2].wait()
        with raises(RuntimeError, "cannot be used any more"):
            future.wait()
        assert not works[0].is_success()
        assert isinstance(works[0].exception(), dist.DeadlineExceeded)
        assert "failed" in repr(works[0])
    # By one clock: whose time is over first asks the others, and ends the call for all.
    first = torch.tensor([began], dtype=torch.float64)
    dist.all_reduce(first, dist.ReduceOp.MIN)
    assert rank == 0 or ended - first.item() > 1.9


def interrupt_in_a_call(group):
    """Once the main thread is in a call of the group, which breaks that off."""
    while group._session._mesh._call is None:
        time.sleep(0.005)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)


def scenario_interruption(rank, size):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    group, other = dist.new_group(), dist.new_group()
    if rank == 0:
        signal.signal(signal.SIGALRM, ring)
        work = dist.barrier(group, async_op=True)
        with raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            work.wait()
        with raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            dist.barrier(group)  # waits for its turn
        threading.Timer(0.1, group.abort).start()
        with raises(dist.GroupFailed, "abort"):
            work.wait()
        threading.Thread(target=interrupt_in_a_call, args=(other,)).start()
        with raises(Alarm):
            dist.barrier(other)
        for peer in range(1, size):
            dist.send(torch.ones(1), peer)
        with raises(dist.GroupFailed, "cannot be used any more: Alarm"):
            dist.barrier(other)
    else:
        dist.recv(torch.ones(1), 0)
        # What rank 0 had sent before it was interrupted may still complete the first call.
        with raises(dist.GroupFailed, "rank 0", "Alarm"):
            dist.barrier(other)
            dist.barrier(other)
        with raises(dist.GroupFailed, "abort"):
            for _ in range(3):
                dist.barrier(group)
    dist.barrier()


def scenario_threads(rank, size):
    """A queue is used from several threads; the order is that of a lock, equal on all ranks."""
    turn = threading.Condition()
    calls = []

    def work(index):
        for round_ in range(5):
            with turn:
                turn.wait_for(lambda due=2 * round_ + index: len(calls) == due)
                calls.append(dist.all_reduce(torch.ones(1), async_op=True))
                turn.notify_all()
            calls[2 * round_ + index].wait()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 10

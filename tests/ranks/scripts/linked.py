"""Calls on a group with its own time limit, for faults on its links: `linked.py --calls 50`."""

import argparse
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def all_reduces(group: dist.ProcessGroup, arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    calls = 0
    going_on = torch.ones(1)
    while going_on.item():
        numbers = torch.ones(arguments.numbers)
        dist.all_reduce(numbers, group=group)
        assert numbers.eq(dist.get_world_size()).all(), "a wrong sum"
        calls += 1
        if arguments.seconds:
            time.sleep(0.01)
        more = calls < arguments.calls or time.monotonic() - began < arguments.seconds
        going_on.fill_(float(more))
        dist.broadcast(going_on, src=0, group=group)


def messages(group: dist.ProcessGroup, arguments: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(arguments.messages):
        sent = torch.full((arguments.numbers,), float(rank))
        came = torch.zeros(arguments.numbers)
        handles = [
            dist.isend(sent, (rank + 1) % size, group=group),
            dist.irecv(came, (rank - 1) % size, group=group),
        ]
        for handle in handles:
            handle.wait()
        assert came.eq((rank - 1) % size).all(), "a wrong message"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="tcp")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--numbers", type=int, default=1000)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    arguments = parser.parse_args()
    # The default group waits for ranks that start slowly; it makes no call.
    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=60))
    began = time.monotonic()
    group = dist.new_group(timeout=timedelta(seconds=arguments.timeout_s))
    all_reduces(group, arguments)
    messages(group, arguments)
    dist.barrier(group=group)
    sys.stdout.write(f"rank {dist.get_rank()} took {time.monotonic() - began:.2f} s\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

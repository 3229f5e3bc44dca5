"""Calls drawn from a seed, the same on all ranks. `random_calls.py BACKEND SEED [--calls N]`."""

import argparse
import random

import torch
import torch.distributed as dist


def all_reduce(draw, rank, size, group):
    dist.all_reduce(torch.ones(draw.choice((1, 64, 5000))), group=group)


def maximum(draw, rank, size, group):
    dist.all_reduce(torch.ones(8, dtype=torch.int64), op=dist.ReduceOp.MAX, group=group)


def in_the_background(draw, rank, size, group):
    works = [dist.all_reduce(torch.ones(16), group=group, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


def broadcast(draw, rank, size, group):
    dist.broadcast(torch.ones(draw.choice((1, 300))), src=draw.randrange(size), group=group)


def gather(draw, rank, size, group):
    dist.all_gather_into_tensor(torch.empty(32 * size), torch.ones(32), group=group)


def exchange(draw, rank, size, group):
    dist.all_to_all_single(torch.empty(4 * size), torch.ones(4 * size), group=group)


def messages(draw, rank, size, group):
    taken = torch.empty(8)
    works = [
        dist.isend(torch.ones(8), (rank + 1) % size, group=group),
        dist.irecv(taken, (rank - 1) % size, group=group),
    ]
    for work in works:
        work.wait()


def barrier(draw, rank, size, group):
    dist.barrier(group=group)


CALLS = (all_reduce, maximum, in_the_background, broadcast, gather, exchange, messages, barrier)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("seed", type=int)
    parser.add_argument("--calls", type=int, default=60)
    args = parser.parse_args()
    if args.backend == "tcp":
        import distcore  # noqa: F401 - registers it
    dist.init_process_group(args.backend)
    draw = random.Random(args.seed)
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [None, dist.new_group(list(range(size)))]
    for _ in range(args.calls):
        draw.choice(CALLS)(draw, rank, size, draw.choice(groups))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

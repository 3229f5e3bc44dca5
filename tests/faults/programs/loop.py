"""A training loop in small: every kind of call, step by step. `loop.py BACKEND [--steps N]`."""

import argparse
import os
import time

import torch
import torch.distributed as dist


def exchange(rank, size, step):
    """Each rank sends to the next one."""
    given, taken = torch.full((4096,), float(step)), torch.empty(4096)  # not buffered
    if rank % 2 == 0:
        dist.send(given, (rank + 1) % size)
        dist.recv(taken, (rank - 1) % size)
    else:
        dist.recv(taken, (rank - 1) % size)
        dist.send(given, (rank + 1) % size)


def train(args):
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    weights = torch.nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for step in range(args.steps):
        gradient = torch.full((64,), float(rank + 1))
        dist.all_reduce(gradient)
        dist.broadcast(gradient, src=0)
        gathered = torch.empty(64 * size)
        dist.all_gather_into_tensor(gathered, gradient)
        splits = [2] * size
        dist.all_to_all_single(torch.empty(2 * size), gathered[: 2 * size], splits, splits)
        dist.reduce(gradient.clone(), dst=0)
        exchange(rank, size, step)
        dist.all_reduce(gradient, group=pairs[rank // 2])
        weights.grad = gradient
        optimizer.step()
        time.sleep(args.pause)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--in-flight", action="store_true", help="destroy with work in flight")
    parser.add_argument("--twice", action="store_true", help="rank 1 takes itself for rank 0")
    args = parser.parse_args()
    if args.twice and os.environ["RANK"] == "1":
        os.environ["RANK"] = "0"
    if args.backend in ("tcp", "mpi"):
        import distcore  # noqa: F401 - registers them
    dist.init_process_group(args.backend)
    train(args)
    if args.in_flight:
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(1 << 20), async_op=True)
        else:
            dist.all_reduce(torch.ones(1 << 20))
            dist.all_reduce(torch.ones(1 << 20))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

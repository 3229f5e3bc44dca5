"""Calls without end, or until one rank goes wrong: `going_on.py --wrong 2`. With `--here FOLDER`
each rank leaves a file there, named for its number, once it has made a few calls."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 5
RANKS = {"SLURM_PROCID": "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE"}
"""As users take them where Slurm or MPI starts each rank."""


def step(rank, number, arguments):
    values = torch.ones(16)
    if rank == arguments.wrong and number == STEPS + 3:
        dist.broadcast(values, src=rank)  # <- look here
    elif rank == arguments.fails and number == STEPS + 3:
        raise ValueError("a bad sample")
    else:
        dist.all_reduce(values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--here", type=Path)
    parser.add_argument("--steps", type=int, default=1 << 60)
    parser.add_argument("--wrong", type=int, default=-1)
    parser.add_argument("--fails", type=int, default=-1)
    parser.add_argument("--fails-until-attempt", type=int, default=1 << 30)
    parser.add_argument("--pause", type=float, default=0.01)
    arguments = parser.parse_args()
    for rank, size in RANKS.items():
        if "RANK" not in os.environ and rank in os.environ:
            os.environ |= {"RANK": os.environ[rank], "WORLD_SIZE": os.environ[size]}
    if arguments.backend in ("tcp", "mpi"):
        import distcore  # noqa: F401 - registers them
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt >= arguments.fails_until_attempt:
        arguments.fails = -1
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    for number in range(arguments.steps):
        step(rank, number, arguments)
        if arguments.here and number == STEPS:
            name = f"{attempt}-{rank}" if attempt else str(rank)
            (arguments.here / name).write_text(str(dist.get_world_size()))
        time.sleep(arguments.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

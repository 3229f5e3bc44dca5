"""Rank 1 is in another call and rank 2 in none when the others' monitored_barrier runs out."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

backend = sys.argv[1]
if backend in ("tcp", "mpi"):
    import distcore  # noqa: F401
dist.init_process_group(backend)
rank = dist.get_rank()
pair = dist.new_group([1, 3], group_desc="pair")
t = torch.ones(4)


def nap():
    time.sleep(4)  # here 2


def barrier(seconds, **options):
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=seconds), **options)
        print("passed", flush=True)
    except RuntimeError as error:
        print(error, flush=True)


barrier(60)
if rank == 1:
    dist.all_reduce(t, group=pair)  # here 1
elif rank == 2:
    nap()
barrier(2, wait_all_ranks=True)
if rank == 3:
    dist.all_reduce(t, group=pair)
barrier(60)
dist.destroy_process_group()

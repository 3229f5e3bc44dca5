"""Rank 1 is in another call and rank 2 in none when the others' monitored_barrier runs out."""

import os
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
store = dist.distributed_c10d._get_default_store()
over = os.path.join(os.environ["DISTDEBUG_RUN_DIR"], "over")


def nap():
    store.set("here 2", "")
    while not os.path.exists(over):
        time.sleep(0.1)  # here 2


def barrier(seconds, **options):
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=seconds), **options)
        print("passed", flush=True)
    except RuntimeError as error:
        print(error, flush=True)


barrier(60)
if rank == 0:
    # Its time runs from when all others are where they are to be.
    store.wait(["here 1", "here 2", "here 3"], timedelta(seconds=60))
elif rank == 1:
    store.set("here 1", "")
    dist.all_reduce(t, group=pair)  # here 1
elif rank == 2:
    nap()
else:
    store.set("here 3", "")
barrier(4, wait_all_ranks=True)
if rank == 0:
    open(over, "w").close()
elif rank == 3:
    dist.all_reduce(t, group=pair)
barrier(60)
dist.destroy_process_group()

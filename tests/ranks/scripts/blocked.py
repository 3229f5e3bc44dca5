"""Every rank ends up in another kind of wait, for ever."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
first, trained, last = dist.new_group([0, 5]), dist.new_group([4, 5]), dist.new_group([3, 5])
t = torch.ones(4)
if rank >= 4:
    model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=trained)
dist.barrier()


def block():
    if rank == 0:
        dist.all_reduce(t, group=first)  # here 0
    elif rank == 1:
        dist.recv(t, src=2)  # here 1
    elif rank == 2:
        time.sleep(300)  # here 2
    elif rank == 3:
        while True:
            pass  # here 3
    elif rank == 4:
        model(t).sum().backward()  # here 4
    else:
        work = dist.all_reduce(t, group=last, async_op=True)
        work.wait()  # here 5


try:
    sys.stdout.write("blocked\n")
    block()
finally:
    sys.stdout.write(f"finally {time.time()}\n")

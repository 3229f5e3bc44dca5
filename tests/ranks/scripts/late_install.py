"""Ranks of a job in which there is nothing of distdebug until it is installed; `mp_spawn` starts
them. They train, call on two groups, and go on until the file `go` is there; then once more, with
what the first argument asks for: `mismatch` has rank 1 give another number of elements.
"""

import hashlib
import itertools
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

what = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
made = torch.Generator().manual_seed(rank)


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 16, generator=made)).square().mean().backward()
        optimizer.step()
        if rank < 2:
            dist.all_reduce(torch.ones(3), group=pair)


train(20)
open(f"ready.{rank}", "w").close()
for turn in itertools.count():
    if what == "sleeper" and rank == 1 and not os.path.exists("slept"):
        time.sleep(8)  # within one call into C: no code of others runs there
        open("slept", "w").close()
    ended = torch.tensor([float(os.path.exists("go"))])
    dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    if ended.item():
        break
    time.sleep(0.002 * ((rank + turn) % 3))  # each in turn is the last to come
train(20)
extra = dist.new_group([0, 2])
if rank != 1:
    handle = dist.broadcast(torch.ones(2), 0, group=extra, async_op=True)
    handle.wait()
# Uneven: rank 0 gives each of them one element, rank 1 two, rank 2 three.
dist.all_to_all_single(torch.ones(6), torch.ones(3 * (rank + 1)), [1, 2, 3], [rank + 1] * 3)
dist.barrier()
if what == "mismatch" and rank == 1:
    open("late", "w").close()
    dist.all_gather_into_tensor(torch.ones(15), torch.ones(5))  # <- here
else:
    dist.all_gather_into_tensor(torch.ones(12), torch.ones(4))
whole = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
# Each whole: other ranks write into the same file, and `print` may do it word by word.
sys.stdout.write(f"checksum {rank} {hashlib.sha256(whole).hexdigest()}\n")
sys.stdout.write(f"left {rank} {'_distdebug' in sys.modules}\n")
dist.barrier()
dist.destroy_process_group()

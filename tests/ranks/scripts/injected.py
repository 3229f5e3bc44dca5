"""A training loop with every kind of call, on the backend of $BACKEND.

With $STEPS_ARE_NAMED it says which step begins; $SAVES and $NEW_GROUPS make it write a file and
make a group in each step, $FUNCTIONAL lets C++ code make calls, too. $STEPS: how many; $ASKS: a
line that rank 0 writes to ask for a fault.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distcore  # noqa: F401 - registers tcp
from distdebug.rank.log import user_log

STEPS = int(os.environ.get("STEPS") or 6)

dist.init_process_group(os.environ["BACKEND"], timeout=timedelta(seconds=90))
rank, world = dist.get_rank(), dist.get_world_size()
every = list(range(world))
pair = dist.new_group(every, group_desc="pair")
torch.manual_seed(0)
everyone = dist.group.WORLD
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if rank == 0 and os.environ.get("ASKS"):
    path = Path(os.environ["DISTDEBUG_RUN_DIR"], "inject-now.jsonl")
    path.write_text(os.environ["ASKS"] + "\n")
following, previous = (rank + 1) % world, (rank - 1) % world


def exchange():
    sent, received = torch.full((4096,), float(rank)), torch.zeros(4096)  # not buffered
    if rank % 2 == 0:
        dist.send(sent, following)
        dist.recv(received, previous)
    else:
        dist.recv(received, previous)
        dist.send(sent, following)  # the send


def train():
    model(torch.randn(16, 8)).square().mean().backward()  # the backward pass
    optimizer.step()  # the step
    optimizer.zero_grad()


for number in range(STEPS):
    if os.environ.get("STEPS_ARE_NAMED"):
        user_log.step(number)  # a step begins
    train()
    tensor = torch.ones(4, 2)
    dist.all_reduce(tensor)  # the all_reduce
    dist.broadcast(tensor, 0)  # the broadcast
    gathered = [torch.zeros(2) for _ in every]
    dist.all_gather(gathered, torch.ones(2))  # the all_gather
    dist.gather(torch.ones(2), gathered if rank == 0 else None, dst=0)  # the gather
    exchanged = torch.zeros(2 * world, 3)
    dist.all_to_all_single(exchanged, torch.ones(2 * world, 3))  # the all_to_all
    exchange()
    work = dist.all_reduce(tensor, group=pair, async_op=True)  # the call of the pair
    work.wait()
    if os.environ.get("FUNCTIONAL"):
        summed = torch.ones(5)
        result = functional.all_reduce(summed, "sum", everyone)  # the functional all_reduce
        functional.wait_tensor(result)
        with dist._coalescing_manager():  # the coalesced calls
            dist.all_reduce(tensor)
            dist.all_reduce(gathered[0])
    if os.environ.get("NEW_GROUPS"):
        dist.destroy_process_group(dist.new_group(every))  # a new group
    if os.environ.get("SAVES"):
        Path(f"checkpoint-{rank}").write_bytes(b"0" * 5000)  # a checkpoint
dist.barrier()  # the barrier
dist.destroy_process_group()

"""A compiled DistributedDataParallel, and one in a compiled step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
compiled = torch.compile(DistributedDataParallel(nn.Linear(4, 1)), backend="aot_eager")
for _ in range(3):
    compiled(torch.ones(2, 4)).mean().backward()
model = DistributedDataParallel(nn.Linear(4, 1))


@torch.compile(backend="aot_eager")
def step(batch):
    loss = model(batch).mean()
    loss.backward()
    return loss


for _ in range(3):
    step(torch.ones(2, 4))
print("trained")
dist.destroy_process_group()

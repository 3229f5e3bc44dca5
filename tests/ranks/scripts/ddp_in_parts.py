"""A model with a backward for each of its outputs, and one that is left waiting for good,
since a part of it was replaced."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 1)
        self.right = nn.Linear(4, 1)

    def forward(self, batch):
        return self.left(batch), self.right(batch)


dist.init_process_group("gloo")
model = DistributedDataParallel(TwoHeads())
waiting = DistributedDataParallel(TwoHeads())
waiting.module.right = nn.Linear(4, 1)
waiting(torch.ones(2, 4))[0].mean().backward()
for _ in range(20):
    for output in model(torch.ones(2, 4)):
        output.mean().backward()
dist.destroy_process_group()

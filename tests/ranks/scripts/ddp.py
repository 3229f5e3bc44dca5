"""Two models: one trained for as many iterations as asked, one wrapped in another way."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Generator(nn.Sequential):
    pass


class Critic(nn.Linear):
    pass


backend, iterations = sys.argv[1], int(sys.argv[2])
if backend == "tcp":
    import distcore  # noqa: F401 - brings the backend
dist.init_process_group(backend)
pair = dist.new_group([0, 1])
generator = DistributedDataParallel(Generator(nn.Linear(4, 8), nn.Linear(8, 1)))
critic = DistributedDataParallel(
    Critic(4, 1),
    process_group=pair,
    broadcast_buffers=False,
    bucket_cap_mb=1,
    find_unused_parameters=True,
    gradient_as_bucket_view=True,
)
for _ in range(iterations):
    generator(torch.ones(2, 4)).mean().backward()
dist.destroy_process_group()

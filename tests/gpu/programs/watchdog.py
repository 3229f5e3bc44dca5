"""Rank 1 leaves out a call, and torch's watchdog of NCCL writes what its flight recorder has."""

import os
import time

import torch
import torch.distributed as dist
from pair import RANK, join, ones

LIMIT_S = 8

join(LIMIT_S)
for _ in range(5):
    dist.all_reduce(ones())
torch.cuda.synchronize()
if RANK == 1:
    time.sleep(60)  # <- look here
    os._exit(0)
dist.all_reduce(ones())
torch.cuda.synchronize()

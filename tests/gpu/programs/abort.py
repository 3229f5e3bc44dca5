"""Both ranks abort their groups after their work instead of destroying them; with `one`, rank 1
does so while rank 0 waits for it in a call, and goes on."""

import sys
import time

import torch
import torch.distributed as dist
from pair import RANK, join, ones

join()
for _ in range(10):
    dist.all_reduce(ones())
torch.cuda.synchronize()
if sys.argv[2] == "one":
    if RANK == 0:
        dist.all_reduce(ones())
        torch.cuda.synchronize()
    else:
        time.sleep(3)  # the other rank's kernel runs by then
dist.distributed_c10d._abort_process_group()  # <- look here
if sys.argv[2] == "one":
    time.sleep(600)

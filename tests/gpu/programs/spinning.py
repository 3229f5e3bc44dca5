"""Rank 1's GPU is given so many seconds of kernels that spin, in front of a call of both ranks."""

import sys

import torch
import torch.distributed as dist
from pair import RANK, join, ones

CYCLES = 1_000_000_000
"""Of each kernel: half a second to a second. A GPU that is taken from a process waits for its
kernel, so none of them spins for long."""


def spin(seconds: float) -> None:
    """Queue kernels that spin; the first tells how long one takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    end.synchronize()
    for _ in range(round(seconds / (start.elapsed_time(end) / 1000))):
        torch.cuda._sleep(CYCLES)


join()
if RANK == 1:
    spin(float(sys.argv[2]))
tensor = ones()
dist.all_reduce(tensor)
torch.cuda.synchronize()
assert tensor.unique().tolist() == [2]
dist.destroy_process_group()

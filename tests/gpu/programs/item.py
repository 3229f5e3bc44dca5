"""Rank 1 leaves out an all_reduce, and rank 0 waits for its GPU in `.item()` behind that call."""

import time

import torch.distributed as dist
from pair import RANK, join, ones


def step() -> float:
    loss = ones(1)
    dist.all_reduce(loss)
    return loss.item()


join()
for number in range(20):
    if RANK == 1 and number == 10:
        time.sleep(600)  # <- look here
    assert step() == 2
dist.destroy_process_group()

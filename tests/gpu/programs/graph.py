"""An all_reduce in a CUDA graph that both ranks replay; with `short`, rank 1 not the last time."""

import sys
import time

import torch
import torch.distributed as dist
from pair import RANK, join, ones

REPLAYS = 5

join()
tensor = ones()
graph = torch.cuda.CUDAGraph()
dist.all_reduce(ones())  # of which nobody has seen the end yet
with torch.cuda.graph(graph):
    dist.all_reduce(tensor)
    time.sleep(0.5)  # the layer's own thread looks several times meanwhile
for number in range(REPLAYS):
    if RANK == 1 and sys.argv[2] == "short" and number == REPLAYS - 1:
        time.sleep(600)  # <- look here
    graph.replay()
    torch.cuda.synchronize()
assert tensor.unique().tolist() == [2**REPLAYS]
dist.all_reduce(tensor)
torch.cuda.synchronize()
del graph  # NCCL ends no communicator that a graph still has calls of
dist.destroy_process_group()

"""Two ranks use all of torch.distributed that the layer stands in front of, and print what comes of
it: `many_ways.py STORE_FILE`, with RANK and WORLD_SIZE set. Correct; the last line is `done`."""

import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)


def show(what, *tensors):
    print(what, *(tensor.tolist() for tensor in tensors), flush=True)


dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[1]}",
    rank=rank,
    world_size=size,
    timeout=timedelta(seconds=60),
)
other = 1 - rank
ones = torch.full((3,), float(rank + 1))
dist.all_reduce(ones)
show("all_reduce", ones)
work = dist.all_reduce(ones, async_op=True)
work.wait()
show("async", ones)
gathered = torch.zeros(2)
dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
show("all_gather", gathered)
dist.broadcast(gathered, src=1)
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
print("objects", objects, flush=True)

everybody = dist.new_group([0, 1], timeout=timedelta(seconds=50))
first = dist.new_group([0])
dist.all_reduce(ones, group=everybody)
show("new_group", ones)
dist.all_reduce(ones, group=first)  # on rank 1, which is not in it, a warning and nothing else
show("first", ones)
print("functional", functional.all_reduce(ones, "sum", dist.group.WORLD).tolist(), flush=True)

sent, received = torch.full((2,), float(rank)), torch.zeros(2)
batch = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
for one in dist.batch_isend_irecv(batch):
    one.wait()
show("batch", received)
if rank == 0:
    dist.send(sent, 1)
else:
    dist.recv(received, 0)
show("recv", received)
dist.barrier()
dist.monitored_barrier(timeout=timedelta(seconds=50))

data = torch.utils.data.DataLoader(torch.randn(4, 3), batch_size=2)
model = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for batch in data:
    optimizer.zero_grad()
    scaler.scale(model(batch).square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
show("model", model.module.weight.sum().round(decimals=3))
try:
    dist.all_reduce("no tensor")
except TypeError as error:
    print("refused", type(error).__name__, flush=True)
store = dist.PrefixStore("mine", dist.FileStore(sys.argv[1] + ".mine", size))
store.set(f"from {rank}", "here")
print("store", store.get(f"from {other}"), flush=True)
print("groups", dist.get_world_size(everybody), dist.get_backend(everybody), flush=True)
dist.destroy_process_group(everybody)
dist.destroy_process_group()
print("done", flush=True)

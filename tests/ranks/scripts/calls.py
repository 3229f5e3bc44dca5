"""Makes every kind of call once or twice; each line's comment says what must be on record."""

import os
import sys
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
other = 1 - rank


def show(name, *values):
    shown = [v.tolist() if isinstance(v, torch.Tensor) else v for v in values]
    sys.stdout.write(f"{rank} {name} {shown}\n")  # in one piece: the ranks may share a pipe
    sys.stdout.flush()


def ones():
    return torch.ones(4) * (rank + 1)


t = ones()
dist.all_reduce(t)  # -> all_reduce(sum, float32[4])
dist.all_reduce(t, op=dist.ReduceOp.MAX)  # -> all_reduce(max, float32[4])
dist.all_reduce(t.double(), dist.ReduceOp.MIN)  # -> all_reduce(min, float64[4])
dist.broadcast(t, src=1)  # -> broadcast(src=1, float32[4])
dist.reduce(t, dst=1, op=dist.ReduceOp.PRODUCT)  # -> reduce(dst=1, product, float32[4])
show("reduced", t)
parts = [torch.zeros(4) for _ in range(world)]
dist.all_gather(parts, ones())  # -> all_gather(float32[4])
show("gathered", *parts)
into = torch.zeros(8)
dist.all_gather_into_tensor(into, ones())  # -> all_gather_into_tensor(float32[4])
show("into", into)
dist.gather(ones(), parts if rank == 0 else None, dst=0)  # -> gather(dst=0, float32[4])
dist.scatter(t, parts if rank == 1 else None, src=1)  # -> scatter(src=1, float32[4])
show("scattered", t, *parts)
half = torch.zeros(2)
dist.reduce_scatter_tensor(half, ones())  # -> reduce_scatter_tensor(sum, float32[4])
dist.reduce_scatter(half, [ones()[:2], ones()[2:]])  # -> reduce_scatter(sum, 2 x float32[2])
show("reduce_scattered", half)
received = torch.zeros(4)
dist.all_to_all_single(received, ones())  # -> all_to_all_single(float32[4])
sends = [1, 3] if rank == 0 else [3, 1]
received = torch.zeros(4)
if rank == 0:
    # rank 0: -> all_to_all_single(float32[4], sends=[1, 3], receives=[1, 3])
    dist.all_to_all_single(received, ones(), sends, sends)
else:
    # rank 1: -> all_to_all_single(float32[4], sends=[3, 1], receives=[3, 1])
    dist.all_to_all_single(received, ones(), sends, sends)
show("exchanged", received)
dist.barrier()  # -> barrier()
dist.monitored_barrier()  # -> monitored_barrier()

work = dist.all_reduce(t, async_op=True)  # -> all_reduce(sum, float32[4])
second = dist.broadcast(half, 0, async_op=True)  # -> broadcast(src=0, float32[2])
second.wait()
work.wait()
assert work.is_completed()
assert work.is_success()
assert second.is_completed()
show("async", t, half, work.get_future().value())
future = dist.all_reduce(t, async_op=True).get_future()  # -> all_reduce(sum, float32[4])
show("future", future.wait())
dist.all_reduce(t, async_op=True)  # -> all_reduce(sum, float32[4])
dist.barrier()  # -> barrier()
show("dropped handle", t)

if rank == 0:
    dist.send(ones(), 1)  # rank 0: -> send(dst=1, float32[4])
    dist.send(ones(), 1, tag=7)  # rank 0: -> send(dst=1, float32[4], tag=7)
    dist.isend(ones(), 1).wait()  # rank 0: -> send(dst=1, float32[4])
    dist.send(ones().int(), 1)  # rank 0: -> send(dst=1, int32[4])
else:
    dist.recv(t, 0)  # rank 1: -> recv(src=0, float32[4])
    dist.recv(t, 0, tag=7)  # rank 1: -> recv(src=0, float32[4], tag=7)
    dist.irecv(t, 0).wait()  # rank 1: -> recv(src=0, float32[4])
    whole = t.int()
    show("any source", dist.recv(whole))  # rank 1: -> recv(src=any, int32[4])
    show("received", t, whole)
pair = [dist.P2POp(dist.isend, ones(), other), dist.P2POp(dist.irecv, t, other)]
if rank == 0:
    # rank 0: -> send(dst=1, float32[4]); recv(src=1, float32[4])
    requests = dist.batch_isend_irecv(pair)
else:
    # rank 1: -> send(dst=0, float32[4]); recv(src=0, float32[4])
    requests = dist.batch_isend_irecv(pair)
for request in requests:
    request.wait()
show("batched", t)

a, b = ones(), ones()
with dist._coalescing_manager():  # -> all_reduce_coalesced(sum, 2 x float32[4])
    dist.all_reduce(a)
    dist.all_reduce(b)
show("coalesced", a, b)

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})  # -> all_gather(int64[1]); all_gather(uint8[24])
show("objects", objects)
names = ["x", 3] if rank == 0 else [None, None]
# -> broadcast(src=0, int64[2]); broadcast(src=0, uint8[21])
dist.broadcast_object_list(names, src=0)
show("names", names)

group = dist.new_group([0, 1])
alone = dist.new_group([1])
dist.all_reduce(t, group=group)  # -> all_reduce(sum, float32[4])
if rank == 1:
    dist.all_reduce(t, group=alone)  # rank 1: -> all_reduce(sum, float32[4])
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))
dist.all_reduce(t, group=mesh.get_group("data"))  # -> all_reduce(sum, float32[4])
dist.all_reduce(t, group=mesh.get_group("model"))  # -> all_reduce(sum, float32[4])
show("groups", t, dist.get_world_size(group), dist.get_backend(group), mesh.size())

# -> all_reduce(sum, float32[4])
result = functional.all_reduce(ones(), "sum", mesh.get_group("data"))
result = functional.wait_tensor(result)
# -> all_gather_into_tensor_coalesced(float32[4])
gathered = functional.all_gather_tensor(ones(), 0, mesh.get_group("data"))
show("functional", result, functional.wait_tensor(gathered))

third = dist.new_group([0, 1])


def in_thread(where, value):
    for _ in range(3):
        # -> 6 times all_reduce(max, float32[4])
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=where)


threads = [threading.Thread(target=in_thread, args=(g, ones())) for g in (group, third)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

with torch.profiler.profile() as profile:
    dist.all_reduce(t)  # -> all_reduce(sum, float32[4])
show(
    "profiled",
    sorted({e.key for e in profile.key_averages() if "c10d" in e.key or "gloo" in e.key}),
)

dist.destroy_process_group()
# With keys of its own: torch's gloo would meet the addresses of the group before.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
again = dist.PrefixStore("again", store)
dist.init_process_group(
    "gloo", store=again, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
)
t = ones()
dist.all_reduce(t)  # -> all_reduce(sum, float32[4])
show("again", t)
dist.barrier()  # -> barrier()
# All are through it: gloo aborts a rank that still reads when its peer closes the connection.
store.set(f"through {rank}", "")
store.wait([f"through {one}" for one in range(world)])
dist.destroy_process_group()

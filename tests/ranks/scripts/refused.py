"""Calls that gloo refuses at once, on rank 0 alone, which catches it: stock torch finishes."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)
sparse = torch.eye(4).to_sparse()
every_other = torch.ones(8)[::2]
REFUSED = {
    "a list of tensors of another size": lambda: dist.gather(t, [torch.ones(3)] * world),
    "a sparse tensor": lambda: dist.broadcast(sparse, 0),
    "outputs of another size": lambda: dist.all_gather([torch.ones(3)] * world, t),
    "a strided message": lambda: dist.send(every_other, 1),
    "an asynchronous one": lambda: dist.all_gather([torch.ones(3)] * world, t, async_op=True),
}
for name, call in REFUSED.items():
    if rank == 0:
        try:
            call()
        except (RuntimeError, ValueError):
            pass
        else:
            raise SystemExit(f"{name}: gloo did not refuse it")
    dist.all_reduce(t)
if rank == 0:
    dist.send(t, 1)
else:
    dist.recv(t, 0)
dist.all_reduce(t)
assert t[0] == world ** (len(REFUSED) + 1), t
dist.barrier()
dist.destroy_process_group()

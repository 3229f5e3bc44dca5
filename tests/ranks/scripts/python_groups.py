"""Groups that are written in Python: one that looks itself up, and ranks that are threads."""

import threading

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg

c10d = dist.distributed_c10d


class Own(dist.ProcessGroup):
    """Does nothing, and asks torch who it is."""

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.known = None

    def getBackendName(self):
        return "own"

    def _done(self, result):
        self.known = {
            "name": c10d._world.pg_names[self],
            "backend": c10d._world.pg_map.get(self)[0],
            "config": c10d._world.pg_backend_config[self],
            "rank": dist.get_rank(self),
            "ranks": dist.get_process_group_ranks(self),
            "group rank": dist.get_group_rank(self, 0),
        }
        future = torch.futures.Future()
        future.set_result(result)
        return (
            c10d._create_work_from_future(future)
            if hasattr(c10d, "_create_work_from_future")
            else torch._C._distributed_c10d._create_work_from_future(future)
        )

    def allreduce(self, tensors, opts=None):
        return self._done(tensors)

    def barrier(self, opts=None):
        return self._done([])

    def all_to_all_single(self, output, given, received, sent, opts=None):
        output.copy_(given)
        return self._done([output])

    alltoall_base = all_to_all_single


dist.Backend.register_backend("own", lambda store, rank, size, timeout: Own(rank, size))
dist.init_process_group("own")
t = torch.ones(2)
dist.all_reduce(t)
world = dist.group.WORLD
assert world.known == {
    "name": "0",
    "backend": "own",
    "config": dist.get_backend_config(),
    "rank": 0,
    "ranks": [0],
    "group rank": 0,
}, world.known
assert len(c10d._world.pg_names) == len(c10d._world.pg_map) == 1
world.mark = "set from outside"
splits = torch.tensor([2])
# Before torch 2.13 the other name is a method that only this group has, and no call of torch's.
has_single = hasattr(dist.ProcessGroup, "all_to_all_single")
exchange = world.all_to_all_single if has_single else world.alltoall_base
exchange(torch.empty(2), t, splits, splits)
dist.all_reduce(t)
inner = getattr(world, "_inner", world)
assert vars(inner)["mark"] == "set from outside"
dist.destroy_process_group()
assert inner not in c10d._world.pg_names

multi_threaded_pg._install_threaded_pg()
torch._C._distributed_c10d._set_thread_isolation_mode(True)
store = dist.HashStore()
summed = []


def work(rank):
    try:
        dist.init_process_group("threaded", rank=rank, world_size=4, store=store)
        mine = torch.full((2,), float(rank))
        dist.all_reduce(mine)
        dist.all_reduce(mine, group=dist.new_group([0, 1, 2, 3]))
        summed.append(mine[0].item())
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        raise


threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert summed == [24.0] * 4, summed

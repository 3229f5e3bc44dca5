"""Groups that are written in Python and choose their ranks themselves, as torchft's do: torch is
told of one rank, whatever they have."""

import torch
import torch.distributed as dist


class Resized(dist.ProcessGroup):
    """Has as many ranks as it was last given; none at first."""

    def __init__(self):
        super().__init__(0, 1)
        self.ranks = None
        self.name = ""

    group_name = property(lambda self: self.name)

    def _set_group_name(self, name):
        self.name = name

    def size(self):
        assert self.ranks is not None, "no ranks yet"
        return self.ranks

    def getBackendName(self):
        return "resized"

    def allreduce(self, tensors, opts=None):
        future = torch.futures.Future()
        future.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(future)


made = Resized()
dist.Backend.register_backend("resized", lambda *_: made, devices=["cpu"])
dist.init_process_group("gloo")
t = torch.ones(2)
dist.all_reduce(t)
for size in (None, 2):
    made.ranks = size
    group = dist.new_group([0], backend="resized")
    assert group is made
    made.ranks = 3
    dist.all_reduce(t, group=group)
    dist.destroy_process_group(group)
made.ranks = 1
group = dist.new_group([0], backend="resized")
dist.all_reduce(t, group=group)
dist.destroy_process_group()

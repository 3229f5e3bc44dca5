"""Messages that block, and such that do not, between two ranks of gloo."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
sent = torch.arange(4.0)
for _ in range(3):
    got = torch.zeros(4)
    if rank == 0:
        dist.send(sent, 1)
        assert dist.recv(got, 1) == 1
    else:
        assert dist.recv(got) == 0  # from whomever
        dist.send(got, 0)
    assert torch.equal(got, sent)
got = torch.zeros(4)
handle = dist.isend(sent, 1) if rank == 0 else dist.irecv(got, 0)
assert handle is not None
handle.wait()
assert rank == 0 or torch.equal(got, sent)
dist.destroy_process_group()

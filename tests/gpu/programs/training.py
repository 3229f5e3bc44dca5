"""DDP for some seconds, with losses that are read, messages, and a rank that is late once."""

import time

import torch
import torch.distributed as dist
from pair import DEVICE, RANK, join, ones
from torch.nn.parallel import DistributedDataParallel

SECONDS = 8.0

join()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2048, 2048).to(DEVICE), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
until_s = time.monotonic() + SECONDS
goes_on = ones(1)
while goes_on.item():
    loss = model(torch.randn(512, 2048, device=DEVICE)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert loss.item() >= 0
    # Rank 0 alone looks at its clock, so that both ranks make as many steps.
    goes_on.fill_(float(time.monotonic() < until_s))
    dist.broadcast(goes_on, src=0)
if RANK == 1:
    time.sleep(4)  # late, within every limit
sent, arrived = ones(), torch.empty(1024, device=DEVICE)
ops = [dist.P2POp(dist.isend, sent, 1 - RANK), dist.P2POp(dist.irecv, arrived, 1 - RANK)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert arrived.sum().item() == 1024
dist.destroy_process_group()

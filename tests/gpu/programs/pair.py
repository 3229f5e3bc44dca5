"""Two ranks that share the first GPU: their process group, and tensors on that GPU."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", 0)


def join(limit_s: float = 300) -> None:
    """Make the default group on the backend that the first argument names, and connect it: the
    first call does, which takes seconds."""
    # NCCL refuses two ranks of one host on one GPU, so each is on a host of its own, by its name.
    os.environ.update(NCCL_HOSTID=f"rank-{RANK}", NCCL_NET="Socket")
    backend = sys.argv[1]
    if backend != "nccl":
        import distcore  # noqa: F401  registers distcore_nccl
    torch.cuda.set_device(DEVICE)
    dist.init_process_group(backend, timeout=timedelta(seconds=limit_s))
    dist.all_reduce(ones())
    torch.cuda.synchronize()


def ones(size: int = 1024) -> torch.Tensor:
    """A vector of ones on the GPU."""
    return torch.ones(size, device=DEVICE)

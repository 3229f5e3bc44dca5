"""The place on a GPU where a rank that compares backends has its tensors, and when its calls are
over."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import distcore

BACKENDS = ("distcore_nccl", "nccl")
_WITHOUT_CUDA = "PYTORCH_NVML_BASED_CUDA_CHECK"


@dataclass(frozen=True)
class Place:
    """`allocate` gives a tensor of so many float32; `finish` waits for what was asked so far."""

    allocate: Callable[[int], torch.Tensor]
    finish: Callable[[], None]


NOWHERE = Place(torch.empty, lambda: None)
"""Main memory: a call is over when it returns."""


def place(rank: int, size: int) -> Place:
    """This rank's GPU: one of its own, as long as there are enough.

    NCCL refuses two ranks of one host on one GPU: those that share one name different hosts.
    """
    cuda: Any = torch.cuda
    count = cuda.device_count()
    if size > count:
        os.environ["NCCL_HOSTID"] = f"distdebug-rank-{rank}"
    cuda.set_device(rank % count)
    return Place(partial(torch.empty, device=f"cuda:{rank % count}"), cuda.synchronize)


def unavailable(backend: str) -> str | None:
    """Tells why it cannot be measured here; None if it can."""
    # Ranks are forked, and CUDA does not survive a fork: it is not to be asked in this process.
    os.environ[_WITHOUT_CUDA] = "1"
    if backend == "nccl":
        cuda: Any = torch.cuda
        there = torch.distributed.is_nccl_available() and cuda.is_available()
        return None if there else f"this torch ({torch.__version__}) has no NCCL and GPU to use"
    return distcore.unavailable(backend)

"""The groups of one rank that compares backends: one for each, with the same ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

TRANSPORT_VARIABLE = "DISTCORE_TRANSPORT"
TIMEOUT = timedelta(seconds=120)


@contextmanager
def joined(
    backends: Sequence[str], rank: int, size: int, directory: Path
) -> Iterator[dict[str, Any]]:
    """A group per backend, such as "gloo" or "tcp/shm", beside the default group, which is gloo's.

    The ranks find each other through a file in `directory`. All leave together, unless one fails.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )
    yield {name: _new_group(name, size) for name in backends}
    dist.barrier()
    dist.destroy_process_group()


def _new_group(name: str, size: int) -> Any:
    with transport(name):
        backend = name.partition("/")[0]
        return dist.new_group(list(range(size)), backend=backend, timeout=TIMEOUT)


@contextmanager
def transport(name: str) -> Iterator[None]:
    """Has new groups in here use the transport that "tcp/shm" names after its slash."""
    _, slash, chosen = name.partition("/")
    before = os.environ.get(TRANSPORT_VARIABLE)
    if slash:
        os.environ[TRANSPORT_VARIABLE] = chosen
    try:
        yield
    finally:
        if slash:
            os.environ.pop(TRANSPORT_VARIABLE)
            if before is not None:
                os.environ[TRANSPORT_VARIABLE] = before

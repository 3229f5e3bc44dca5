"""Two groups with the same ranks in one process: torch's own, and one with the layer around it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..rank.heartbeat import Heartbeat
from ..rank.install import install
from .measuring import STOCK

RECORD = "record"
INFO = "info"


@dataclass(frozen=True)
class Groups:
    """The groups, and a beat of the layer's heartbeat, which runs whichever group is in use."""

    stock: Any
    layered: Any
    beat: Callable[[], None]

    def ways(self, call: Callable[[Any], object]) -> dict[str, Callable[[], object]]:
        """`call(group)` as stock torch does it, as the layer at OFF does, and at INFO."""

        def at(level: Any, group: Any) -> Callable[[], object]:
            def way() -> object:
                return call(group)

            return way if level is None else _with_level(level, way)

        return {
            STOCK: at(None, self.stock),
            RECORD: at(dist.DebugLevel.OFF, self.layered),
            INFO: at(dist.DebugLevel.INFO, self.layered),
        }


def _with_level(_level: Any, way: Callable[[], object]) -> Callable[[], object]:
    return way


def make(directory: Path, backend: str, rank: int, size: int) -> Groups:
    """Join the other ranks through a file in `directory`, where the record is kept as well."""
    os.environ["DISTDEBUG_RAISE_OWN_FAULTS"] = "1"
    if backend == "fake":
        dist.init_process_group(backend, rank=rank, world_size=size)
    else:
        method = f"file://{directory / 'rendezvous'}"
        dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    stock = dist.new_group(list(range(size)))
    recorder = install(str(directory))
    if recorder is None:
        raise RuntimeError("the layer could not be installed")
    layered = dist.new_group(list(range(size)))
    return Groups(stock, layered, Heartbeat(recorder, lambda: None).beat)

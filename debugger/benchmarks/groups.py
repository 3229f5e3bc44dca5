"""Groups with the same ranks in one process: torch's own, one with the layer around it, and one
with what torch itself puts around its groups at DETAIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..rank.install import install
from ..rank.process.heartbeat import Heartbeat
from .measuring import STOCK, Way

RECORD = "record"
INFO = "info"
DETAIL = "detail"
TORCH_DETAIL = "torch_detail"
Call = Callable[[Any], object]
"""The call that is measured, given a group."""


@dataclass(frozen=True)
class Groups:
    """The groups (torch has no DETAIL on the fake backend: None), and a beat of the layer's
    heartbeat, which runs whichever group is in use."""

    stock: Any
    layered: Any
    torch_detail: Any
    beat: Callable[[], None]

    def ways(self, call: Call) -> dict[str, Way]:
        """`call(group)` as stock torch does it, as the layer does at OFF, and at INFO."""
        off, info = partial(_set_level, "OFF"), partial(_set_level, "INFO")
        return {
            STOCK: Way(partial(call, self.stock), off),
            RECORD: Way(partial(call, self.layered), off),
            INFO: Way(partial(call, self.layered), info),
        }

    def detail_ways(self, call: Call) -> dict[str, Way]:
        """`call(group)` as stock torch does it, as the layer does at DETAIL, and as torch does."""
        off, detail = partial(_set_level, "OFF"), partial(_set_level, "DETAIL")
        return {
            STOCK: Way(partial(call, self.stock), off),
            DETAIL: Way(partial(call, self.layered), detail),
            TORCH_DETAIL: Way(partial(call, self.torch_detail), off),
        }


def _set_level(name: str) -> None:
    untyped: Any = dist  # torch's annotations leave these names out
    untyped.set_debug_level(getattr(untyped.DebugLevel, name))


def make(directory: Path, backend: str, rank: int, size: int) -> Groups:
    """Join the other ranks through a file in `directory`, where the record is kept as well."""
    os.environ["DISTDEBUG_RAISE_OWN_FAULTS"] = "1"
    if backend == "fake":
        dist.init_process_group(backend, rank=rank, world_size=size)
    else:
        method = f"file://{directory / 'rendezvous'}"
        dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    ranks = list(range(size))
    _set_level("OFF")
    stock = dist.new_group(ranks)
    torch_detail = None
    if backend != "fake":
        _set_level("DETAIL")
        torch_detail = dist.new_group(ranks)
        _set_level("OFF")
    layer = install(str(directory))
    if layer is None:
        raise RuntimeError("the layer could not be installed")
    layered = dist.new_group(ranks)
    beat = Heartbeat(layer.recorder, layer.unwaited, lambda: None)
    return Groups(stock, layered, torch_detail, beat.beat)

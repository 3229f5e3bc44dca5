"""The backend "distcore_nccl": CUDA tensors, over NVIDIA's NCCL through nccl4py; and its groups.

It stands beside torch's own "nccl"; `distcore.init_process_group("nccl")` takes this one. NCCL
reads its own environment (NCCL_DEBUG, NCCL_SOCKET_IFNAME, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch

from ..base.deadline import Deadline, Timer
from ..engine.staging import GPU_ONLY, DeviceReach
from ..groups.composite import CompositeGroup
from ..groups.process_group import CoreGroup, Origin
from . import library
from .device import Cuda
from .elements import reducing_for
from .engine import NcclEngine
from .library import Library
from .life import NcclLife


class NcclGroup(CoreGroup):
    """See `CoreGroup`. Calls between `_start_coalescing` and `_end_coalescing` are one of NCCL's,
    which is why torch may ask for that."""

    supports_coalescing = True

    _engine: NcclEngine

    def _reduction(self, op: Any, dtype: torch.dtype) -> Any:
        return reducing_for(op, dtype, self._engine.name)

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Connect the ranks now, on this device; every rank does it."""
        engine = self._engine
        index = torch.device(device).index if device is not None else None
        if index is not None:
            engine.bound = index
        engine.connect(engine.meeting_place(), Deadline.after(self._timeout_s))

    def drop_coalescing(self) -> None:
        """None of the calls since `_start_coalescing` is made."""
        self._coalescing = None
        self._engine.drop_batch()

    def _enable_collectives_timing(self) -> None:
        """Nothing to do: every call is timed by its events."""

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> CoreGroup | None:
        """Splits the group as `CoreGroup.split_group` does; where it is connected, by a split of
        its communicator in which every rank takes part. Groups that are made by one split must not
        overlap."""
        ranks = self._ranks_to_split(new_ranks)
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        key = ranks.index(self._rank) if self._rank in ranks else None
        color = min(ranks) if key is not None else None
        name = group_name or f"{self._group_name}:split:{self._splits}"
        made = self._engine.split(color, key or 0, name, limit_s)
        group = super().split_group(ranks, timeout, opts, group_name, group_desc, device_types)
        if group is not None and made is not None:
            index, member = made
            assert isinstance(group, NcclGroup)
            assert member is not None
            group._engine.adopt(index, member)
        return group


class NcclComposite(CompositeGroup, NcclGroup):  # type: ignore[misc]
    """A group on NCCL whose tensors on the CPU go to another backend."""


@dataclass(frozen=True)
class NcclBackend:
    """See `distcore.backend.Backend`. Tests put stand-ins for NCCL and CUDA in place."""

    name: str = "distcore_nccl"
    devices: tuple[str, ...] = ("cuda",)
    load: Callable[[], Library] = library.load
    device: Cuda = field(default_factory=Cuda)
    reach: DeviceReach = GPU_ONLY

    def unavailable(self) -> str | None:
        return library.unavailable(self.name)

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """A group that its first call will connect."""
        kind = NcclGroup if group_class is CoreGroup else NcclComposite
        life = NcclLife(origin, self.load(), self.device, Timer())
        engine = NcclEngine(self.name, life, self.reach)
        return kind(replace(origin, token=life.token), engine, self.create)

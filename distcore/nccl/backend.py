"""The backend "distcore_nccl": CUDA tensors, over NVIDIA's NCCL through nccl4py.

It stands beside torch's own "nccl"; `distcore.init_process_group("nccl")` takes this one. NCCL
reads its own environment (NCCL_DEBUG, NCCL_SOCKET_IFNAME, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..engine.staging import GPU_ONLY, DeviceReach
from ..groups.process_group import CoreGroup, Origin
from . import library
from .communicators import Connector, Timer
from .device import Cuda, Device
from .engine import NcclEngine
from .group import NcclComposite, NcclGroup
from .library import Library
from .life import NcclLife


@dataclass(frozen=True)
class NcclBackend:
    """See `distcore.backend.Backend`. Tests put stand-ins for NCCL and CUDA in place."""

    name: str = "distcore_nccl"
    devices: tuple[str, ...] = ("cuda",)
    load: Callable[[], Library] = library.load
    device: Device = field(default_factory=Cuda)
    reach: DeviceReach = GPU_ONLY

    def unavailable(self) -> str | None:
        return library.unavailable(self.name)

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """A group that its first call will connect."""
        kind = NcclGroup if group_class is CoreGroup else NcclComposite
        nccl = self.load()
        clock = Timer()
        life = NcclLife(
            origin.name, origin.ranks, origin.rank, origin.store, nccl, self.device, clock
        )
        connector = Connector(nccl, origin.store, clock)
        engine = NcclEngine(
            self.name, life, nccl, self.device, connector, origin.store, clock, self.reach
        )

        def make_alike(other: Origin) -> CoreGroup:
            return self.create(other, CoreGroup)

        return kind(replace(origin, token=life.token), engine, make_alike)

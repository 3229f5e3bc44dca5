"""The backend "distcore_nccl" on the stand-ins, for CPU tensors: `use()` puts it in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from distcore import backend
from distcore.engine.staging import DeviceReach
from distcore.nccl import messages
from distcore.nccl.backend import NcclBackend
from distcore.nccl.library import Library
from tests.support.fake_nccl import core
from tests.support.fake_nccl.device import CpuDevice, ThreadedLane


def plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


@dataclass(frozen=True)
class FakeNcclBackend(NcclBackend):
    name: str = "distcore_nccl"
    devices: tuple[str, ...] = ("cpu",)
    load: Any = field(default=lambda: Library(core))
    device: Any = field(default_factory=CpuDevice)
    reach: DeviceReach = field(default_factory=lambda: DeviceReach(("cpu",), (), plain))

    def unavailable(self) -> str | None:
        return None


def use(*devices: str) -> None:
    """In the place of the real one, in this process; for tensors of these devices, CPU if none is
    named (see `on_cuda`)."""
    messages.StreamLane = ThreadedLane  # type: ignore[misc]
    known: Any = torch.distributed.Backend
    known._plugins.pop("DISTCORE_NCCL", None)
    backend.registered.pop("distcore_nccl", None)
    if not devices:
        backend.register(FakeNcclBackend())
    else:
        reach = DeviceReach(devices, (), plain)
        backend.register(FakeNcclBackend(devices=devices, reach=reach))


class OnCuda(torch.Tensor):
    """A CPU tensor that says it is on the first GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    is_cpu = False  # type: ignore[assignment]


def on_cuda(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnCuda)

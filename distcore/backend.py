"""The interface of a backend, ours that there are, and how torch.distributed is told of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch.distributed as dist

from . import torch_api, torch_private
from .groups.composite import CompositeGroup
from .groups.process_group import CoreGroup, Origin
from .mpi import torch_api as mpi
from .mpi.backend import MpiBackend
from .nccl.backend import NcclBackend
from .registration import adapters, registered, stand_by
from .tcp.backend import TcpBackend
from .transports.parcels import BUFFERED_BYTES


class Backend(Protocol):
    """A backend of distcore."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of devices that torch counts it for when it is named alone."""

    def unavailable(self) -> str | None:
        """Why it cannot be used here, in a sentence with the next step; None if it can."""

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """A group, connected or not. Every rank of it calls this."""


@dataclass(frozen=True)
class Creator:
    """The function that torch calls to create a group on `backend`."""

    backend: Backend

    def __call__(self, asked: Any, _options: Any = None) -> CoreGroup:
        reason = self.backend.unavailable()
        if reason is not None:
            raise RuntimeError(reason)
        if getattr(asked, "enable_reconfigure", False):
            raise ValueError(
                f"enable_reconfigure: backend {self.backend.name!r} cannot change the ranks of a "
                f"group; leave it out, and make a new group instead"
            )
        torch_api.open_to_our_groups()
        devices, planned = torch_private.creation_in_progress()
        ranks = tuple(asked.global_ranks_in_group) or tuple(range(asked.group_size))
        origin = Origin(
            self.backend.name,
            asked.store,
            ranks,
            asked.group_rank,
            asked.group_id,
            asked.timeout,
        )
        others = {device: name for device, name in devices.items() if name != self.backend.name}
        if others:
            made = {
                device: _other(device, name, planned, origin) for device, name in others.items()
            }
            group: CoreGroup = _composite(self.backend, made, origin)
        else:
            group = self.backend.create(origin, CoreGroup)
        bound = getattr(planned, "bound_device_id", None)
        if bound is not None:
            group.bound_device_id = bound
            theirs = made.get(bound.type) if others else None
            if isinstance(theirs, CoreGroup):
                theirs.eager_connect_single_device(bound)
            elif bound.type in self.backend.devices:
                group.eager_connect_single_device(bound)
        return group


def _composite(backend: Backend, others: dict[str, Any], origin: Origin) -> CompositeGroup:
    """With these groups for the other devices; those that are made of it have their own."""
    group = backend.create(origin, CompositeGroup)
    assert isinstance(group, CompositeGroup)
    group.others = others
    group._make = lambda alike, _class: _composite(backend, {}, alike)
    return group


def _other(device: str, name: str, planned: Any, origin: Origin) -> Any:
    """The backend for another device: one of ours; torch's own that it has made already, or a new
    one."""
    ours = registered.get(name)
    if ours is not None:
        reason = ours.unavailable()
        if reason is not None:
            raise RuntimeError(reason)
        store = torch_private.dist.PrefixStore(f"{device}/", origin.store)
        return ours.create(replace(origin, backend=name, store=store), CoreGroup)
    for made in planned._device_types:
        if made.type == device:
            return planned._get_backend(made)
    return torch_private.make_backend(name, device, origin, planned)


def register(backend: Backend) -> None:
    """Make `init_process_group(backend.name)` work. Once; again it changes nothing."""
    registered.setdefault(backend.name, backend)
    known: Any = dist.Backend
    plugin = known._plugins.get(backend.name.upper())
    if plugin is not None and isinstance(plugin.creator_fn, Creator):
        return
    known.register_backend(
        backend.name, Creator(backend), extended_api=True, devices=list(backend.devices)
    )


def unavailable(backend: str) -> str | None:
    """Why distcore's own "tcp", "mpi" or "nccl" cannot be used in this process, in a sentence with
    the next step; None if it can. Raises ValueError for another name."""
    found: Backend | None = registered.get(backend) or registered.get(f"distcore_{backend}")
    if found is None:
        raise ValueError(f"distcore has no backend {backend!r}")
    return found.unavailable()


_BACKENDS = (TcpBackend(), MpiBackend(), NcclBackend())
BUFFERS = {TcpBackend.name: BUFFERED_BYTES}
"""By backend: how many bytes that a rank has sent to another one are buffered until that receives
them (see `transports.matching`). What others buffer is for the libraries below them to say."""


def register_all(named: Collection[str] = ()) -> None:
    """Make `init_process_group` work with "tcp", "mpi" and "distcore_nccl", and have torch say so;
    given names, only where one is ours.

    Opens nothing and starts nothing; again it changes nothing.
    """
    stand_by(register_all)
    if TcpBackend.name in registered:
        return
    if named and {mpi.SHOWN, *(one.name for one in _BACKENDS)}.isdisjoint(named):
        return
    if not torch_private.has_own_mpi():
        adapters.update(mpi.ADAPTED)
    for backend in _BACKENDS:
        register(backend)
    mpi.answer_for_torch()

"""Makes torch take the name "mpi" for our backend, where torch itself was built without MPI.

torch treats a backend of that name in its own way: no store, no rank, no new_group with local
synchronisation. So torch is asked for our backend under the name it is registered by, with rank,
size and store from MPI; afterwards the group's backend is called "mpi" again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed.constants import default_pg_timeout

from .. import torch_private
from ..registration import by_device, renamed
from . import library, world

SHOWN = "mpi"
REGISTERED = "distcore_mpi"


def answer_for_torch() -> None:
    """Put our `is_mpi_available` in front of torch's; once. A torch with an MPI of its own keeps
    its own."""
    if not torch_private.has_own_mpi():
        torch_private.in_front("is_mpi_available", is_mpi_available)


_asked_for = False
"""Whether the program has named the backend mpi."""


def is_mpi_available() -> bool:
    """Check if the MPI backend is available.

    A process that no MPI launcher has started is a world of one for MPI. Programs take this answer
    for a reason to choose mpi, so there it is no until they have asked for mpi by its name.
    """
    return (_asked_for or world.was_launched()) and library.unavailable() is None


def _is_ours(backend: Any) -> bool:
    return SHOWN in by_device(str(backend or "").lower()).values()


def _translated(backend: Any) -> str:
    """`cpu:distcore_mpi,cuda:nccl` for `cpu:mpi,cuda:nccl`"""
    return renamed(str(backend).lower(), {SHOWN: REGISTERED})


def _check_available() -> None:
    global _asked_for
    _asked_for = True
    reason = library.unavailable()
    if reason is not None:
        raise RuntimeError(reason)


def initialisation(theirs: Any) -> Any:
    """torch's init_process_group, with the backend mpi."""

    def init(
        backend: Any = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **more: Any,
    ) -> Any:
        if _is_ours(backend):
            _check_available()
            limit_s = (default_pg_timeout if timeout is None else timeout).total_seconds()
            everybody = world.join(limit_s)
            world.check_agrees(everybody, rank, world_size)
            # "env://" says where the ranks' store is only if the variables do; else MPI connects
            # them.
            leads_somewhere = init_method is not None
            if init_method == "env://":
                leads_somewhere = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
            if store is None and not leads_somewhere:
                init_method, store = None, world.make_store(everybody, limit_s)
            backend, world_size, rank = _translated(backend), everybody.size, everybody.rank
        return theirs(backend, init_method, timeout, world_size, rank, store, *args, **more)

    return init


def _new_group_with_tag(theirs: Any) -> Any:
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **more: Any
    ) -> Any:
        if not backend:
            with contextlib.suppress(Exception):  # torch says itself what is wrong
                backend = torch_private.default_backend()
        if _is_ours(backend):
            _check_available()
            backend = _translated(backend)
        return theirs(ranks, timeout, backend, *args, **more)

    return new_group


def _create_group(theirs: Any) -> Any:
    def create(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: Any,
        backend: Any,
        store: Any,
        group_name: Any,
        *args: Any,
        timeout: Any = None,
        **more: Any,
    ) -> Any:
        if _is_ours(backend):  # init_process_group was imported before it was replaced
            _check_available()
            backend = torch_private.dist.Backend(_translated(backend))
        if REGISTERED in str(backend) and not global_ranks_in_group and group_rank < 0:
            limit_s = (default_pg_timeout if timeout is None else timeout).total_seconds()
            everybody = world.join(limit_s)
            world.check_agrees(everybody, -1, -1)
            group_size, group_rank = everybody.size, everybody.rank
            store = world.make_store(everybody, limit_s)
        given = (group_size, group_rank, global_ranks_in_group, backend, store, group_name)
        made = theirs(*given, *args, timeout=timeout, **more)
        if REGISTERED in str(backend):
            torch_private.rename_backend(made[0], REGISTERED, SHOWN)
        return made

    return create


ADAPTED: dict[str, Callable[[Any], Any]] = {
    "init_process_group": initialisation,
    "_new_group_with_tag": _new_group_with_tag,
    "_new_process_group_helper": _create_group,
}
"""By torch's function: what makes one that takes the name "mpi" and goes in front of it."""

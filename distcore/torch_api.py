"""torch.distributed's functions where ours differ.

Some refuse every backend but gloo or NCCL, and are opened to our groups; torch's own version still
serves every other group. For those that name a backend, distcore's "nccl" is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from . import torch_private
from .groups.operators import open_operators_to
from .groups.process_group import CoreGroup
from .nccl import library
from .registration import renamed

_OURS = {"nccl": "distcore_nccl"}
"""The backend that a program means by torch's name where it says `import distcore as dist`."""


def named(backend: Any) -> Any:
    """Ours in the place of "nccl", also in "cpu:gloo,cuda:nccl"; other names as they are."""
    if not isinstance(backend, str):
        return backend
    return renamed(backend, _OURS)


def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
    """torch's; `backend` "nccl" is distcore's own, which torch knows as "distcore_nccl"."""
    torch_private.dist.init_process_group(named(backend), *args, **kwargs)


def new_group(
    ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """torch's; `backend` as for `init_process_group`."""
    return torch_private.dist.new_group(ranks, timeout, named(backend), *args, **kwargs)


def is_nccl_available() -> bool:
    """Whether `init_process_group("nccl")` of distcore can work in this process."""
    return library.unavailable("distcore_nccl") is None


def open_to_our_groups() -> None:
    """Put ours in front of torch's; done when the first group of ours is made."""
    torch_private.in_front("monitored_barrier", monitored_barrier)
    torch_private.in_front("split_group", split_group)
    torch_private.in_front("batch_isend_irecv", batch_isend_irecv)
    open_operators_to(lambda group: _ours(group) is not None)
    torch_private.in_front("_maybe_attach_flight_recorder", attach_flight_recorder)


def _ours(group: Any) -> Any:
    """The group, or the default group for None, if it is ours; what stands in front of one of
    ours (a checking layer) counts as well."""
    if torch_private.is_not_in(group):
        return None
    found = torch_private.default_group() if group is None else group
    inner = found
    while inner is not None and not isinstance(inner, CoreGroup):
        inner = getattr(inner, "_inner", None)
    return found if inner is not None else None


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """A barrier that fails when a rank does not come in time, and names it.

    `timeout`: a timedelta, by default the group's. With `wait_all_ranks` the message names all
    missing ranks, otherwise the first. Raises `distcore.errors.BarrierFailed`, whose `missing` are
    all of them, and after which the group can still be used; TypeError for another timeout.
    """
    found = _ours(group)
    if found is None:
        torch_private.original("monitored_barrier")(group, timeout, wait_all_ranks)
        return
    if isinstance(timeout, int | float):  # torch takes seconds here as well
        timeout = timedelta(seconds=timeout)
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"timeout: expected a timedelta, given {type(timeout).__name__}")
    found.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def split_group(
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **more: Any,
) -> Any:
    """The group of `split_ranks` (lists of the parent's ranks) that this rank is in. A rank that
    is in none is given what torch's own gives it: None, as of 2.15 what new_group gives.

    As torch's, but also without a GPU: as of torch 2.14 the ranks of the new group are in the order
    of their list, before that they are sorted. Raises ValueError for ranks that the parent does not
    have, and for a `backend` that is a part of the parent's only.
    """
    parent = _ours(parent_pg)
    if parent is None:
        original = torch_private.original("split_group")
        return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **more)
    backend = more.get("backend")
    has = torch_private.dist.get_backend(parent), torch_private.dist.get_backend_config(parent)
    if backend is not None and str(backend).lower() not in has:
        raise ValueError(
            f"backend: a group of distcore's is split with all that it has, "
            f"{' or '.join(map(repr, has))}, given {str(backend)!r}"
        )
    if not split_ranks:
        raise ValueError(f"split_ranks: expected a list of lists of ranks, given {split_ranks!r}")
    members = torch_private.global_ranks(parent)
    for ranks in split_ranks:
        if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(len(members))):
            raise ValueError(
                f"split_ranks: expected ranks of a group of {len(members)}, each once in its "
                f"list, given {list(ranks)}"
            )
    mine = parent.rank()
    own = next((list(ranks) for ranks in split_ranks if mine in ranks), None)
    if own is not None and torch_private.SPLITS_ARE_SORTED:
        own.sort()
    # Not torch's hashed names: they count the groups that a rank is in, which differ by rank.
    group = parent.split_group(own or list(split_ranks[0]), timeout=timeout, group_desc=group_desc)
    if group is None:
        return torch_private.OUTSIDE_OF_SPLITS
    torch_private.register_group(group, [members[rank] for rank in own or ()], parent)
    return group


def batch_isend_irecv(p2p_op_list: Any) -> Any:
    """torch's; also groups of ours send and receive all of them together, where they can. torch
    asks that of its own class of groups alone."""
    original = torch_private.original("batch_isend_irecv")
    first = p2p_op_list[0] if isinstance(p2p_op_list, list) and p2p_op_list else None
    group, tensor = getattr(first, "group", None), getattr(first, "tensor", None)
    if not isinstance(group, CoreGroup) or tensor is None:
        return original(p2p_op_list)
    if not group._get_backend(tensor.device).supports_coalescing:
        group._start_coalescing()
        try:
            return original(p2p_op_list)
        finally:
            group._end_coalescing()
    return torch_private.coalesced(group, tensor.device, p2p_op_list)


def attach_flight_recorder(group: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's, since 2.15; but not for groups of ours. Its recorder asks the C++ backend of a group
    what it can do, and a group in Python has none: it could not be made."""
    if isinstance(group, CoreGroup):
        return None
    return torch_private.original("_maybe_attach_flight_recorder")(group, *args, **kwargs)

"""The one file of this package that touches torch's private names.

Written against torch 2.11 to 2.15. What a release does not have is left out, not guessed: importing
this file needs no private name, and a function here that cannot do without one says which.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
import torch.distributed
import torch.distributed.distributed_c10d

# torch exports these names at run time, but its stubs do not say so.
dist: Any = torch.distributed
c10d: Any = torch.distributed.distributed_c10d

_bindings: Any = getattr(torch._C, "_distributed_c10d", None)


SPLITS_ARE_SORTED = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 14)
"""Whether `split_group` of this torch sorts the ranks of each new group, or keeps their order."""


def _outside_of_splits() -> Any:
    split: Any = getattr(dist, "split_group", None)
    given = str(inspect.signature(split).return_annotation) if callable(split) else ""
    told_apart = "Literal" in given or "_NonGroupMember" in given
    return dist.GroupMember.NON_GROUP_MEMBER if told_apart else None


OUTSIDE_OF_SPLITS = _outside_of_splits()
"""The value that `split_group` of this torch gives a rank that no list has: None, which the other
functions take for all ranks, or what new_group gives (2.15)."""


unwatched: Callable[[], AbstractContextManager[object]] = getattr(
    torch._C, "DisableTorchFunction", nullcontext
)
"""Within, the modes of a program that see torch's functions do not see those that are called here:
each attribute of a tensor is one, and a mode makes it thirty times as expensive."""

profiler_enabled: Callable[[], bool] = getattr(
    getattr(torch._C, "_autograd", None), "_profiler_enabled", lambda: False
)
"""Whether a profiler records; asked for every call, so it must be cheap."""


def _missing(consequence: str, name: str) -> NotImplementedError:
    return NotImplementedError(f"{consequence}: torch {torch.__version__} has no {name}")


def error_type(name: str) -> Any:
    """torch's constant for the state of a backend: SUCCESS, TIMEOUT, COMM_ERROR, ..."""
    kinds = getattr(_bindings, "ErrorType", None)
    if kinds is None:
        raise _missing("a group cannot tell its error", "ErrorType")
    return getattr(kinds, name)


_NO_OVERLAP, _OVERLAP, _UNKNOWN = 0, 1, 2


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory."""
    if tensor.numel() == 0:
        return False
    look: Any = getattr(torch, "_debug_has_internal_overlap", None)
    found = _UNKNOWN if look is None else look(tensor)
    if found in (_NO_OVERLAP, _OVERLAP):
        return bool(found == _OVERLAP)
    extent = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                break
            extent += stride * (size - 1)
    else:
        return False  # every dimension steps over all the smaller ones
    offsets = torch.zeros((), dtype=torch.int64, device="cpu")
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        offsets = offsets.unsqueeze(-1) + stride * torch.arange(size, device="cpu")
    return len(set(offsets.flatten().tolist())) < tensor.numel()


def creation_in_progress() -> tuple[dict[str, str], Any]:
    """For a backend's creator, called by torch: which backend the program asked for on each kind
    of device, and the group that torch was about to make.

    A creator is not told. Without the answer, "cpu:tcp,cuda:nccl" would get no NCCL: torch takes
    a Python group for the whole and does not create the others. ({}, None) if it cannot be seen.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    if frame is None:
        return {}, None
    seen = frame.f_locals
    config = seen.get("backend_config")
    devices = config.get_device_backend_map() if config is not None else {}
    return {str(device): str(name) for device, name in devices.items()}, seen.get("pg")


def make_backend(name: str, device: str, origin: Any, planned: Any) -> Any:
    """Makes one of torch's own backends, or of another package's, for another device of a group of
    ours, which has this origin. `planned`: the group that torch was about to make.

    Raises ValueError for a backend that torch does not have.
    """
    # Since 2.14 torch's own backends are in its table as well, and the table says which of those
    # for NCCL is "nccl" (TORCH_DIST_USE_NCCL2).
    load = getattr(dist.Backend, "_ensure_backend_registered", None)
    if load is not None:
        load(name)
    plugin = getattr(dist.Backend, "_plugins", {}).get(name.upper())
    store = dist.PrefixStore(f"{device}/", origin.store)
    size = len(origin.ranks)
    if plugin is not None and not plugin.extended_api:
        return _counting(plugin.creator_fn(store, origin.rank, size, origin.timeout))
    if plugin is not None:
        asked = _bindings._DistributedBackendOptions()
        asked.store, asked.group_rank, asked.group_size = store, origin.rank, size
        asked.timeout, asked.group_id = origin.timeout, origin.name
        asked.global_ranks_in_group = list(origin.ranks)
        if hasattr(asked, "process_group"):
            asked.process_group = planned
        return _counting(plugin.creator_fn(asked, None))
    if name == "nccl" and dist.is_nccl_available():
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = origin.timeout
        options.global_ranks_in_group = list(origin.ranks)
        options.group_name = origin.name
        return _counting(c10d.ProcessGroupNCCL(store, origin.rank, size, options))
    if name == "gloo" and dist.is_gloo_available():
        return _counting(c10d.ProcessGroupGloo(store, origin.rank, size, timeout=origin.timeout))
    raise ValueError(
        f"backend {name!r} for {device} beside ours: torch of this installation has only "
        f"{[n for n in ('gloo', 'nccl') if dist.is_backend_available(n)]}"
    )


def _counting(backend: Any) -> Any:
    """The backend, once it numbers its calls."""
    begin = getattr(backend, "_set_sequence_number_for_group", None)
    if begin is not None:
        begin()
    return backend


def register_group(group: Any, ranks: Sequence[int], like: Any) -> None:
    """Make a group that torch did not create itself known to its functions; its backend is that
    of the group `like`."""
    world = getattr(c10d, "_world", None)
    register = getattr(c10d, "_register_process_group", None)
    if world is None or register is None:
        raise _missing("a group cannot be split", "_world and _register_process_group")
    name = group.group_name
    if name in world.pg_names.values():
        raise ValueError(f"a group of the name {name!r} exists already")
    world.pg_map[group] = (world.pg_map[like][0], group.get_group_store())
    world.pg_names[group] = name
    world.pg_backend_config[group] = world.pg_backend_config[like]
    world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
    tag = f"ptd:{name}"
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.pg_to_tag[group] = tag
    register(name, group)


def global_ranks(group: Any) -> list[int]:
    """The global ranks, by the group's own ranks."""
    return list(dist.get_process_group_ranks(group))


def is_not_in(group: Any) -> bool:
    """Whether this is what torch gives a rank for a group that it is not in."""
    return bool(group is not None and group == dist.GroupMember.NON_GROUP_MEMBER)


def default_group() -> Any:
    """The group of init_process_group. Raises ValueError before that was called."""
    group = dist.group.WORLD
    if group is None:
        raise ValueError(
            "Default process group has not been initialized, "
            "please make sure to call init_process_group."
        )
    return group


_originals: dict[str, Callable[..., Any]] = {}


def original(name: str) -> Callable[..., Any]:
    """torch's own version of a function of torch.distributed."""
    found: Callable[..., Any] = _originals.get(name) or getattr(c10d, name)
    return found


def in_front(name: str, ours: Callable[..., Any]) -> None:
    """Put our function in the place of torch's; once."""
    theirs = getattr(c10d, name, None)
    if theirs is None or name in _originals:
        return
    _originals[name] = theirs
    setattr(c10d, name, ours)
    if getattr(dist, name, None) is theirs:
        setattr(dist, name, ours)


_kernels: Any = None


def in_front_of_operator(
    name: str,
    devices: Sequence[str],
    kernel: Callable[..., Any],
    serves: Sequence[Callable[[Any], bool]],
) -> None:
    """Have `kernel(group, *arguments)` serve the functional operator of that name for groups that
    one of these says it `serves`; torch's own serves the others. Once; nothing where torch has
    none."""
    global _kernels
    operator = getattr(torch.ops._c10d_functional, name, None)
    if operator is None or name in _originals:
        return
    overload = operator.default
    own = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    schema = overload._schema
    place = next(i for i, one in enumerate(schema.arguments) if one.name == "group_name")

    def serve(*args: Any, **kwargs: Any) -> Any:
        group = c10d._resolve_process_group(args[place])
        if type(group) is dist.ProcessGroup or not any(one(group) for one in serves):
            return overload.redispatch(own, *args, **kwargs)
        return kernel(group, *args, **kwargs)

    if _kernels is None:
        library: Any = torch.library.Library
        _kernels = library("_c10d_functional", "IMPL")
    for device in devices:
        _kernels.impl(name, serve, device)
    _originals[name] = overload


def register_work(tensor: torch.Tensor, work: Any) -> None:
    """Have `wait_tensor` of this tensor wait for the call that writes it."""
    torch._C._distributed_c10d._register_work(tensor, work)


def coalesced(group: Any, device: Any, p2p_ops: Sequence[Any]) -> list[Any]:
    """Runs calls together as torch's `batch_isend_irecv` does for backends that can. Raises
    ValueError for ops of several groups' backends, RuntimeError for what is no P2POp."""
    check = getattr(c10d, "_check_p2p_op_list", None)
    gather = getattr(c10d, "_coalescing_manager", None)
    if check is None or gather is None:
        raise _missing("messages cannot go together", "_check_p2p_op_list and _coalescing_manager")
    check(p2p_ops)
    try:
        with gather(group, device, async_ops=True) as together:
            for one in p2p_ops:
                to = "group_dst" if one.op is c10d.isend else "group_src"
                one.op(one.tensor, group=one.group, tag=one.tag, **{to: one.group_peer})
    except BaseException:
        # torch would leave it open, and gather what comes next.
        getattr(getattr(c10d, "_world", None), "pg_coalesce_state", {}).pop(group, None)
        drop = getattr(group._get_backend(device), "drop_coalescing", None)
        if drop is not None:
            drop()
        raise
    return list(together.works)


def has_own_mpi() -> bool:
    """Whether this torch was built with MPI."""
    return bool(getattr(c10d, "_MPI_AVAILABLE", False))


def default_backend() -> str:
    """The name of the default group's backend. Raises ValueError where there is no such group."""
    return str(dist.get_backend(default_group()))


def rename_backend(group: Any, before: str, after: str) -> None:
    """Changes the name by which torch calls this group's backend."""
    world = getattr(c10d, "_world", None)
    if group in getattr(world, "pg_map", ()):
        assert world is not None
        name, store = world.pg_map[group]
        world.pg_map[group] = (str(name).replace(before, after), store)
    if group in getattr(world, "pg_backend_config", ()):
        assert world is not None
        config = str(world.pg_backend_config[group])
        world.pg_backend_config[group] = config.replace(before, after)

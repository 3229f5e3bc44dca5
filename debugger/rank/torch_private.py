"""The one file that touches torch's private names: where torch creates, names and drops groups.

Written against torch 2.11 to 2.13. What is missing in a release is left out, not guessed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed
import torch.distributed.distributed_c10d
import wrapt

# torch exports these names at run time, but its stubs do not say so.
dist: Any = torch.distributed
c10d: Any = torch.distributed.distributed_c10d
ProcessGroup: Any = torch.distributed.ProcessGroup

Wrapped = Callable[..., Any]


def patch(owner: Any, name: str, make: Callable[[Wrapped], Wrapped]) -> None:
    """Replace `owner.name` by `make(original)`; torch's re-exports of it follow."""
    original = getattr(owner, name, None)
    if original is None:
        return
    replacement = functools.wraps(original)(make(original))
    setattr(owner, name, replacement)
    if owner is c10d and getattr(dist, name, None) is original:
        setattr(dist, name, replacement)


def on_group_creation(make: Callable[[Wrapped], Wrapped]) -> None:
    """Wrap the function through which init_process_group and new_group create every group."""
    patch(c10d, "_new_process_group_helper", make)


def helper_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a group creation by name."""
    names = ("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def is_hashed_name(group_name: str) -> bool:
    """Whether a group was named after its ranks, so that only its members create it."""
    return not group_name.isdigit()


def replace_group(inner: Any, outer: Any) -> None:
    """Put `outer` in place of `inner` in torch's registries."""
    world = c10d._world
    for registry in (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.pg_coalesce_state,
    ):
        if inner in registry:
            registry[outer] = registry.pop(inner)
    for groups in world.tags_to_pg.values():
        for index, group in enumerate(groups):
            if group is inner:
                groups[index] = outer
    name = world.pg_names.get(outer)
    if name is not None:
        c10d._unregister_process_group(name)
        c10d._register_process_group(name, outer)


def clone_group(make: Callable[..., Any], inner: Any, backend: str) -> Any:
    """A group of class `make` with the rank, size, backends and names of `inner`.

    Python subclasses can only be made by the constructor that takes no store.
    """
    if is_python_group(inner):
        outer = _shadow_class(make, type(inner))(inner.rank(), inner.size())
        outer._inner = inner
        return outer
    outer = make(inner.rank(), inner.size())
    types = c10d.Backend.backend_type_map
    names = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
    custom = c10d.ProcessGroup.BackendType.CUSTOM
    for device in inner._device_types:
        name = names.get(device.type, "")
        outer._register_backend(device, types.get(name, custom), inner._get_backend(device))
    default = names.get("cpu") if len(set(names.values())) > 1 else next(iter(names.values()))
    if backend == c10d.Backend.UNDEFINED and "nccl" in names.values():
        default = "nccl"
    outer._set_default_backend(types.get(default or "", custom))
    if inner.bound_device_id is not None:
        outer.bound_device_id = inner.bound_device_id
    outer._set_group_name(inner.group_name)
    outer._set_group_desc(inner.group_desc)
    return outer


def is_python_group(group: Any) -> bool:
    """Whether the group is a backend's own, written in Python, with no C++ backend inside."""
    return type(group) is not c10d.ProcessGroup


_shadows: dict[tuple[Any, Any], Any] = {}


def _shadow_class(group_class: Any, inner_class: Any) -> Any:
    """A subclass of `group_class` that answers by its `_inner` whatever `inner_class` answers in
    its own way: names, devices, options, and what torch does not know of."""
    if (group_class, inner_class) in _shadows:
        return _shadows[group_class, inner_class]
    shadows: dict[str, Any] = {}
    plain = set(dir(object)) | {"__init_subclass__", "__new__", "__init__", "__dict__"}
    ours = [base for base in group_class.__mro__ if not issubclass(c10d.ProcessGroup, base)]
    own = {name for base in ours for name in vars(base)}
    for base in reversed(inner_class.__mro__):
        if issubclass(c10d.ProcessGroup, base):
            continue  # torch's own: the inner group does nothing else there
        for name, member in vars(base).items():
            if name in plain or name in own or name.startswith("__"):
                continue
            if callable(member):
                shadows[name] = _by_inner(name)
            elif not name.startswith("_abc"):
                shadows[name] = property(operator.attrgetter(f"_inner.{name}"))
    made = type(f"{group_class.__name__}Of{inner_class.__name__}", (group_class,), shadows)
    _shadows[group_class, inner_class] = made
    return made


def _by_inner(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    call.__name__ = name
    return call


def backend_name(inner: Any) -> str:
    """ "gloo", or "cpu:gloo,cuda:nccl" where devices differ."""
    config = str(c10d._world.pg_backend_config.get(inner, ""))
    parts = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    return config if len(set(parts.values())) > 1 else next(iter(parts.values()), config)


def coalesce_messages(group_class: type) -> None:
    """Let `batch_isend_irecv` coalesce in a group of this class as in the one behind it.

    Up to torch 2.14 it does so for groups of torch's own class only, and asks with `type(group) is
    ProcessGroup`, to which a class in front of it has no answer. Later ones ask the backend.
    """

    def make(original: Wrapped) -> Wrapped:
        def batch_isend_irecv(p2p_op_list: Any) -> Any:
            found = _coalescing(p2p_op_list, group_class)
            if found is None:
                return original(p2p_op_list)
            group, device = found
            with c10d._coalescing_manager(group, device, async_ops=True) as coalesced:
                for one in p2p_op_list:
                    peer = "group_dst" if one.op is c10d.isend else "group_src"
                    one.op(one.tensor, group=one.group, tag=one.tag, **{peer: one.group_peer})
            return coalesced.works

        return batch_isend_irecv

    if asks_for_the_class(c10d.batch_isend_irecv):
        patch(c10d, "batch_isend_irecv", make)


def _coalescing(messages: Any, group_class: type) -> tuple[Any, Any] | None:
    """Group and device of messages that are coalesced; None where torch's own way is right."""
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(one, c10d.P2POp) for one in messages):
        return None
    group = messages[0].group
    if not all(group == one.group for one in messages):
        return None  # which torch refuses
    group = c10d.GroupMember.WORLD if group is None else group
    if not isinstance(group, group_class):
        return None
    inner: Any = group
    device = messages[0].tensor.device
    if is_python_group(inner._inner) or not inner._get_backend(device).supports_coalescing:
        return None
    return group, device


def asks_for_the_class(function: Any) -> bool:
    """Whether this function of torch's compares the exact class of something."""
    code = inspect.unwrap(function).__code__
    return "type" in code.co_names and "isinstance" not in code.co_names


def await_completion_hooks(group: Any, group_class: type) -> None:
    """Wait for the hooks of works that end: destroy_process_group does so, by the same test of the
    exact class, for groups of torch's own class only."""
    found = c10d.GroupMember.WORLD if group is None else group
    if not isinstance(found, group_class) or c10d._world.pg_map.get(found) is None:
        return
    inner: Any = found
    if not is_python_group(inner._inner) and inner._inner._has_hooks():
        inner._inner._wait_for_pending_works()


def open_monitored_barrier(group_class: type) -> None:
    """Let `monitored_barrier` take groups of this class whatever their backend is."""

    def make(original: Wrapped) -> Wrapped:
        def monitored_barrier(
            group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
        ) -> Any:
            found = c10d.GroupMember.WORLD if group is None else group
            if not isinstance(found, group_class):
                return original(group, timeout, wait_all_ranks)
            if isinstance(timeout, int | float):  # torch takes seconds here as well
                timeout = timedelta(seconds=timeout)
            if timeout is not None:
                c10d._check_valid_timeout(timeout)
            barrier: Any = found
            return barrier.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

        return monitored_barrier

    patch(c10d, "monitored_barrier", make)


def keep_uncompiled(directories: list[str]) -> None:
    """Let torch.compile leave alone the code in these directories, when it is ever loaded. It would
    else look into groups that a compiled program's C++ code calls, and fail."""

    def add(rules: Any) -> None:
        with contextlib.suppress(AttributeError):
            rules.SKIP_DIRS.extend(directories)
            rules._recompile_re()

    wrapt.register_post_import_hook(add, "torch._dynamo.trace_rules")


def on_blocking_messages(watch: Callable[[], AbstractContextManager[None]]) -> None:
    """Be entered around each `send` and `recv`, which wait, unlike `isend` and `irecv`."""

    def make(original: Wrapped) -> Wrapped:
        def blocking(*args: Any, **kwargs: Any) -> Any:
            with watch():
                return original(*args, **kwargs)

        return blocking

    for name in ("send", "recv"):
        patch(c10d, name, make)


def on_not_in_group(note: Callable[[str], None]) -> None:
    """Hear of collectives that torch skips because the rank is not in the group."""

    def make(original: Wrapped) -> Wrapped:
        def warn(op_name: str) -> Any:
            note(op_name)
            return original(op_name)

        return warn

    patch(c10d, "_warn_not_in_group", make)


def on_breakpoint(make_pdb: Callable[[], Any]) -> None:
    """Let `torch.distributed.breakpoint` stop in what `make_pdb` makes."""
    for name in ("_make_distributed_pdb", "_DistributedPdb"):  # of torch 2.13, and before
        patch(dist, name, lambda _original: lambda: make_pdb())


def prolong(inner: Any, timeout: timedelta) -> bool:
    """Give the group's gloo this timeout; whether it could be told."""
    gloo = getattr(c10d, "ProcessGroupGloo", None)
    if gloo is None or is_python_group(inner):
        return False
    found = [inner._get_backend(device) for device in inner._device_types]
    if not all(isinstance(one, gloo) and hasattr(one, "set_timeout") for one in found):
        return False
    for one in found:
        one.set_timeout(timeout)
    return bool(found)


def on_group_timeout(changed: Callable[[Any, timedelta], bool]) -> None:
    """`changed(group, timeout)` hears of new timeouts; its True keeps them from the backend."""

    def make(original: Wrapped) -> Wrapped:
        def set_timeout(timeout: timedelta, group: Any = None) -> Any:
            found = c10d.GroupMember.WORLD if group is None else group
            return None if changed(found, timeout) else original(timeout, group)

        return set_timeout

    patch(c10d, "_set_pg_timeout", make)


def on_data_end(note: Callable[[int], None]) -> None:
    """Hear of a DataLoader's iterator that has no more batches; with how many it gave."""
    from torch.utils.data import dataloader

    def make(original: Wrapped) -> Wrapped:
        def following(self: Any) -> Any:
            try:
                return original(self)
            except StopIteration:
                note(int(getattr(self, "_num_yielded", 0)))
                raise

        return following

    patch(dataloader._BaseDataLoaderIter, "__next__", make)


def take_debug_level(current: Callable[[], str], choose: Callable[[str], None], asked: str) -> str:
    """Make the public functions of the debug level answer `current()` and call `choose(name)`.
    torch's own code goes on asking its own level, which stays below DETAIL; that level's name now.

    `asked` is what set_debug_level_from_env takes where the variable is not set: distdebug may have
    taken it away.
    """
    levels = dist.DebugLevel
    own_set, own_get, own_from_env = (
        dist.set_debug_level,
        dist.get_debug_level,
        dist.set_debug_level_from_env,
    )

    def set_debug_level(level: Any) -> None:
        own_set(levels.INFO if level == levels.DETAIL else level)
        choose(level.name)

    def set_debug_level_from_env() -> None:
        if "TORCH_DISTRIBUTED_DEBUG" in os.environ:
            own_from_env()
            set_debug_level(own_get())
        else:
            set_debug_level(getattr(levels, asked))

    found = own_get()
    if found == levels.DETAIL:
        own_set(levels.INFO)  # the program has set the variable before it imported torch
    patch(dist, "get_debug_level", lambda _own: lambda: getattr(levels, current()))
    patch(dist, "set_debug_level", lambda _own: set_debug_level)
    patch(dist, "set_debug_level_from_env", lambda _own: set_debug_level_from_env)
    return str(found.name)


def on_model_replicated(model_class: Any, note: Callable[[Any], None]) -> None:
    """Hear of every DDP model, once it is made."""

    def make(original: Wrapped) -> Wrapped:
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            note(self)

        return construct

    patch(model_class, "__init__", make)


def on_models_averaged(note: Callable[[], None]) -> None:
    """Hear of torch's own averagers of models (local SGD), as they are made."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging import averagers

    def make(original: Wrapped) -> Wrapped:
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            note()
            original(self, *args, **kwargs)

        return construct

    patch(averagers.ModelAverager, "__init__", make)
    patch(post_localSGD_hook.PostLocalSGDState, "__init__", make)


def on_loss_scaling(note: Callable[[], None]) -> None:
    """Hear of each enabled GradScaler, FSDP's included, at its first loss."""

    def make(original: Wrapped) -> Wrapped:
        def begin(self: Any, *args: Any) -> Any:
            note()
            return original(self, *args)

        return begin

    patch(torch.amp.GradScaler, "_lazy_init_scale_growth_tracker", make)


def on_optimizer_steps(before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
    """Hear of each step of each optimiser."""
    from torch.optim import optimizer

    def hook(tell: Callable[[Any], None]) -> Callable[..., None]:
        def call(stepping: Any, _args: Any, _kwargs: Any) -> None:
            if not torch.compiler.is_compiling():  # dynamo must not meet what follows
                tell(stepping)

        return call

    optimizer.register_optimizer_step_pre_hook(hook(before))
    optimizer.register_optimizer_step_post_hook(hook(after))


def cannot_look(hook: FrameType) -> bool:
    """Whether a step is no whole one, or its parameters cannot be read now. `hook` is the frame of
    the function that torch called.

    A step within another optimiser's is a part of that: ZeroRedundancyOptimizer's own brings the
    ranks together. The capture of a CUDA graph must not meet a wait for the device.
    """
    step = hook.f_back
    above = step.f_back if step is not None else None
    while above is not None:
        if step is not None and above.f_code is step.f_code:
            return True
        above = above.f_back
    return capturing()


def capturing() -> bool:
    """Whether this thread captures a CUDA graph."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def take_times(group: Any) -> None:
    """Have torch's NCCL record when its calls begin, too; without that it knows no durations."""
    try:
        group._enable_collectives_timing()
    except Exception:  # a backend, or a release, that cannot
        pass

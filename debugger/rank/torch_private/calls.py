"""torch's functions where the layer must come before or behind them (those of communication, and
the exceptions that leave them, DDP and optimisers), or stands in for them: the debug level, the
debugger, the compiler; and the lines of the program in a graph of torch.compile's.

For the exceptions none of these functions is wrapped: torch itself describes a call of
torch.distributed that failed for its log, and is within a `record_function` in the others.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from types import FrameType
from typing import Any

from torch.autograd.profiler import record_function
from torch.distributed import c10d_logger

from ...hook.loading import when_imported
from .groups import FrontGroup, is_python_group
from .probe import (
    DIST,
    Private,
    WatchedPart,
    Wrapped,
    before,
    c10d,
    dist,
    instead,
    patch,
    private,
    within,
)

COALESCING = WatchedPart(
    "coalesced_messages",
    "batch_isend_irecv starts its messages one by one",
    private("_coalescing_manager", ("group", "device", "async_ops"), called=True),
    private("P2POp", ("op", "tensor", "peer")),
    private("ProcessGroup._get_backend", ("self", "device"), called=True),
)
COMPLETION_HOOKS = WatchedPart(
    "completion_hooks",
    "the end of a group does not wait for completion hooks",
    private("ProcessGroup._has_hooks", ("self",), called=True),
    private("ProcessGroup._wait_for_pending_works", ("self",), called=True),
    private("_world.pg_map", kind=dict),
)
NOT_IN_GROUP = WatchedPart(
    "not_in_group",
    "calls on groups that a rank is not in are not noticed",
    private("_warn_not_in_group", ("op_name",)),
)


def coalesce_messages() -> None:
    """Let `batch_isend_irecv` coalesce in a group in front as in the one behind it.

    Up to torch 2.14 it does so for groups of torch's own class only, and asks with `type(group) is
    ProcessGroup`, to which a class in front of it has no answer. Later ones ask the backend.
    """

    def coalesced(original: Wrapped, p2p_op_list: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = _coalescing(p2p_op_list)
        except Exception as error:
            COALESCING.switch_off(f"looking at the messages failed: {error!r}")
            found = None
        if found is None:
            return original(p2p_op_list, *args, **kwargs)
        group, device = found
        with c10d._coalescing_manager(group, device, async_ops=True) as manager:
            for one in p2p_op_list:
                peer = "group_dst" if one.op is c10d.isend else "group_src"
                one.op(one.tensor, group=one.group, tag=one.tag, **{peer: one.group_peer})
        return manager.works

    # A function that compares the exact class of something.
    names = inspect.unwrap(c10d.batch_isend_irecv).__code__.co_names
    if "type" in names and "isinstance" not in names and COALESCING.works:
        instead(c10d, "batch_isend_irecv", coalesced)


def _coalescing(messages: Any) -> tuple[Any, Any] | None:
    """Group and device of messages that are coalesced; None where torch's own way is right."""
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(one, c10d.P2POp) for one in messages):
        return None
    group = messages[0].group
    if not all(group == one.group for one in messages):
        return None  # which torch refuses
    group = c10d.GroupMember.WORLD if group is None else group
    if not isinstance(group, FrontGroup):
        return None
    device = messages[0].tensor.device
    if is_python_group(group._inner) or not group._get_backend(device).supports_coalescing:
        return None
    return group, device


@COMPLETION_HOOKS
def await_completion_hooks(group: Any) -> None:
    """Wait for the hooks of works that end: destroy_process_group does so, by the same test of the
    exact class, for groups of torch's own class only."""
    found = c10d.GroupMember.WORLD if group is None else group
    if not isinstance(found, FrontGroup) or c10d._world.pg_map.get(found) is None:
        return
    try:
        if not is_python_group(found._inner) and found._inner._has_hooks():
            found._inner._wait_for_pending_works()
    except Exception as error:
        COMPLETION_HOOKS.switch_off(f"asking for them failed: {error!r}")


def open_monitored_barrier() -> None:
    """Let `monitored_barrier` take groups in front of others whatever their backend is."""

    def monitored_barrier(
        original: Wrapped,
        group: Any = None,
        timeout: Any = None,
        wait_all_ranks: bool = False,
        **more: Any,
    ) -> Any:
        found = c10d.GroupMember.WORLD if group is None else group
        if not isinstance(found, FrontGroup) or more:
            return original(group, timeout, wait_all_ranks, **more)
        if isinstance(timeout, int | float):  # torch takes seconds here as well
            timeout = timedelta(seconds=timeout)
        if timeout is not None and not isinstance(timeout, timedelta):
            kind = type(timeout)
            raise TypeError(
                f"Expected timeout argument to be of type datetime.timedelta, got {kind}"
            )
        return found.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    instead(c10d, "monitored_barrier", monitored_barrier)


def on_blocking_messages(watch: Callable[[], AbstractContextManager[None]]) -> None:
    """Be entered around each `send` and `recv`, which wait, unlike `isend` and `irecv`."""

    for name in ("send", "recv"):
        within(c10d, name, lambda *_, **__: watch())


@NOT_IN_GROUP
def on_not_in_group(note: Callable[[str], None]) -> None:
    """Hear of collectives that torch skips because the rank is not in the group."""

    before(c10d, "_warn_not_in_group", lambda op_name, *_, **__: note(op_name))


FAILURES = WatchedPart(
    "caught_exceptions",
    "exceptions that the program catches are not told",
    Private("torch.distributed.c10d_logger", "_get_msg_dict", ("func_name",)),
    Private("torch.autograd.profiler", "record_function.__exit__", ("self", "exc_type")),
)
_STEP = "Optimizer.step#"
_NOTED = (_STEP, "DistributedDataParallel.forward")


@FAILURES
def on_failures(note: Callable[[str, BaseException | None], None]) -> None:
    """`note(function, error)` hears of each exception that leaves one of them."""

    def describes(function: Any, *_: Any, **__: Any) -> None:
        note(str(function), sys.exc_info()[1])

    def leaves(function: Any, _: Any = None, error: Any = None, *__: Any) -> None:
        if error is not None and function.name.startswith(_NOTED):
            note(function.name.removeprefix(_STEP), error)

    before(c10d_logger, "_get_msg_dict", describes)
    before(record_function, "__exit__", leaves)


_PDB = "_make_distributed_pdb" if hasattr(dist, "_make_distributed_pdb") else "_DistributedPdb"
"""The name that torch has for it since 2.13, or had before."""
PDB = WatchedPart(
    "torch_breakpoint",
    "torch.distributed.breakpoint is torch's own",
    Private(DIST, _PDB),
)
_RULES = "torch._dynamo.trace_rules"
UNCOMPILED = WatchedPart(
    "compiled_programs",
    "torch.compile may look into the groups that stand before a program's own",
    Private(_RULES, "SKIP_DIRS", kind=list),
    Private(_RULES, "_recompile_re", (), called=True),
)


def keep_uncompiled(directories: list[str]) -> None:
    """Let torch.compile leave alone the code in these directories, when it is ever loaded. It would
    else look into groups that a compiled program's C++ code calls, and fail."""

    def add(rules: Any) -> None:
        if UNCOMPILED.works:
            try:
                rules.SKIP_DIRS.extend(directories)
                rules._recompile_re()
            except Exception as error:
                UNCOMPILED.switch_off(f"torch.compile was not told: {error!r}")

    when_imported("torch._dynamo.trace_rules", add)


@PDB
def on_breakpoint(make_pdb: Callable[[], Any]) -> None:
    """Let `torch.distributed.breakpoint` stop in what `make_pdb` makes."""
    patch(dist, _PDB, lambda _original: lambda: make_pdb())


def take_debug_level(
    current: Callable[[], str], choose: Callable[[str], None], choose_default: Callable[[], None]
) -> str:
    """Make the public functions of the debug level answer `current()` and call `choose(name)`.
    torch's own code goes on asking its own level, which stays below DETAIL; that level's name now.

    `choose_default` is what set_debug_level_from_env does where the variable is not set.
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
            own_set(levels.INFO if found == levels.DETAIL else found)
            choose_default()

    found = own_get()
    if found == levels.DETAIL:
        own_set(levels.INFO)  # the program has set the variable before it imported torch
    patch(dist, "get_debug_level", lambda _own: lambda: getattr(levels, current()))
    patch(dist, "set_debug_level", lambda _own: set_debug_level)
    patch(dist, "set_debug_level_from_env", lambda _own: set_debug_level_from_env)
    return str(found.name)


_ENTRY = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_COLLECTIVES = "c10d"
"""In the name of every operator of torch.distributed's."""


def lines_in_graph(frame: FrameType) -> list[tuple[str, int, str]]:
    """File, line and function of all callers, the innermost first, for the frame of a graph's code
    that makes a call; none where that is not on record, or the graph is made otherwise than known.
    """
    try:
        values = frame.f_locals
        graph: Any = values.get("self")
        if type(values) is dict:
            values.clear()  # a copy, before Python 3.13, which would keep what the graph lets go
        first = getattr(graph, "_prologue_start", 0)
        index = getattr(graph, "_lineno_map", {})[frame.f_lineno - first]
        node = next(islice(graph.graph.nodes, index, None))
        if _COLLECTIVES not in str(node.target):
            return []
        entries = _ENTRY.findall(node.stack_trace)
    except Exception:
        return []
    return [(file, int(line), function) for file, line, function in reversed(entries)]

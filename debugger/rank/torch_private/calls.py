"""torch's functions of communication, where the layer must come before or behind them, and the
exceptions that leave them, DDP and optimisers.

For the exceptions none of these functions is wrapped: torch itself describes a call of
torch.distributed that failed for its log, and is within a `record_function` in the others.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from torch.autograd.profiler import record_function
from torch.distributed import c10d_logger

from .groups import FrontGroup, is_python_group
from .probe import Private, WatchedPart, Wrapped, before, c10d, instead, private, within

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

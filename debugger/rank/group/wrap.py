"""Puts a CheckedGroup in place of every group that torch creates, and records who creates what."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ...record.layout import Activity
from .. import torch_private
from ..agreement import collectives
from ..agreement.monitored_barrier import Monitor
from ..checks import pipeline
from ..record.errors import FindingRaised
from ..record.recorder import Recorder, report_own_fault
from ..torch_private import gloo_sockets
from . import forks, timeouts
from .checked_group import CheckedGroup

_getframe = sys._getframe
_told_of_default: list[Callable[[str, int], None]] = []
_before_default: list[Callable[[], None]] = []


def on_default_group(tell: Callable[[str, int], None]) -> None:
    """`tell(backend, rank)` is called when a default group is there."""
    _told_of_default.append(tell)


def before_default_group(act: Callable[[], None]) -> None:
    """`act()` is called once, before the next default group is made; it may choose another
    class."""
    _before_default.append(act)


_group_class = CheckedGroup
_seen: weakref.WeakSet[Recorder] = weakref.WeakSet()


def check_that_creation_is_seen(recorder: Recorder) -> None:
    """torch has made the default group: by the function that is wrapped here, or by another?"""
    if recorder not in _seen:
        torch_private.creation_was_not_seen()


def choose_class(group_class: type[CheckedGroup]) -> None:
    """Groups that are made from now on are observed by one of this class."""
    global _group_class
    _group_class = group_class


def observe(recorder: Recorder, group_class: type[CheckedGroup] = CheckedGroup) -> None:
    """From now on every new group is observed: by one of this class in front of it."""
    torch_private.try_a_front()
    torch_private.on_group_creation(lambda original: _creation(recorder, original))
    torch_private.coalesce_messages(CheckedGroup)
    torch_private.show_to_hooks(CheckedGroup)
    torch_private.on_unregistered_groups(
        lambda: recorder.gone_blind("recording of groups of torch.distributed._dist2")
    )
    choose_class(group_class)


def _creation(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def create(*args: Any, **kwargs: Any) -> Any:
        if torch_private.has_threads_for_ranks():
            recorder.gone_blind("recording of ranks that are threads")
            return original(*args, **kwargs)
        _seen.add(recorder)
        try:
            given = torch_private.helper_arguments(args, kwargs)
            ranks = [int(rank) for rank in given.get("global_ranks_in_group") or ()]
            name = str(given["group_name"])
            backend = str(given["backend"])
        except Exception as error:
            recorder.gone_blind("recording of group creations")
            report_own_fault("recording of group creations", error)
            return original(*args, **kwargs)
        if not ranks:
            while _before_default:
                _before_default.pop()()
            with gloo_sockets.remembered(name):
                created = original(*args, **kwargs)
            _tell_of_default(created, backend)
            return _wrapped(recorder, created, ranks, name, backend, given)
        site = recorder.safe_site(_getframe(1))
        if not torch_private.is_hashed_name(name):
            try:
                recorder.creation(name, ranks, backend, site)
            except Exception as error:
                recorder.gone_blind("recording of group creations")
                report_own_fault("recording of group creations", error)
        detail = {"op": "new_group", "name": name, "ranks": ranks, "backend": backend}
        with recorder.waiting_in(Activity.NEW_GROUP, detail, site):
            with gloo_sockets.remembered(name):
                created = original(*args, **kwargs)
            # Within: at DETAIL this waits for the other ranks as well.
            return _wrapped(recorder, created, ranks, name, backend, given)

    return create


def _tell_of_default(created: Any, backend: str) -> None:
    for tell in _told_of_default:
        try:
            group = created[0]
            tell(torch_private.backend_name(group) or backend, int(group.rank()))
        except Exception as error:
            report_own_fault("telling of the default group", error)


def _wrapped(
    recorder: Recorder,
    created: Any,
    ranks: list[int],
    name: str,
    backend: str,
    given: dict[str, Any],
) -> Any:
    try:
        inner, store = created
        is_group = isinstance(inner, torch_private.c10d.ProcessGroup)
        if not is_group or isinstance(inner, CheckedGroup):
            return created  # this rank is no member, or the group existed already
        ranks = ranks or list(range(inner.size()))
        desc = str(given.get("group_desc") or "undefined")
        timeout = given.get("timeout")
        outer = _checked(recorder, inner, ranks, name, desc, timeout, backend, store)
        if outer is None:
            recorder.gone_blind(f"recording of group {name!r}, for want of room,")
            return created
        torch_private.replace_group(inner, outer)
        torch_private.record_operators(CheckedGroup)
    except FindingRaised:
        raise  # the verdict of the run, which came meanwhile
    except Exception as error:
        recorder.gone_blind(f"recording of group {name!r}")
        report_own_fault(f"recording of group {name!r}", error)
        return created
    return outer, store


def _checked(
    recorder: Recorder,
    inner: Any,
    ranks: list[int],
    name: str,
    desc: str,
    timeout: timedelta | None,
    backend: str,
    store: Any,
) -> CheckedGroup | None:
    config = torch_private.backend_name(inner) or backend
    seconds = timeout.total_seconds() if timeout is not None else None
    record = recorder.new_group(name, desc, ranks, inner.rank(), config, seconds)
    if record is None:
        return None
    outer: CheckedGroup = torch_private.clone_group(_group_class, inner, backend)

    def wrap_split(
        _parent: CheckedGroup, split: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if split is None:
            return None
        members = [record.ranks[index] for index in (args[0] if args else kwargs["ranks"])]
        child = _checked(
            recorder,
            split,
            members,
            split.group_name,
            split.group_desc,
            None,
            backend,
            split.get_group_store(),
        )
        return split if child is None else child

    # Without ranks of their own there is nobody to wait for, and no store to do it through.
    reached = collectives.reaches(record)
    barrier = Monitor(recorder, record, store).barrier if reached else inner.monitored_barrier
    outer.attach(inner, recorder, record, wrap_split, barrier)
    collectives.guard(recorder, record, store)
    if "nccl" in config:
        torch_private.take_times(inner)
    pipeline.inspect(recorder, record)
    recorder.group_ready(record)
    timeouts.take_over(record, inner)
    forks.watch_group(outer)
    return outer

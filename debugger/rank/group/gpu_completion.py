"""Calls that the program has waited for, and whose GPU is not there yet.

A wait for a call on CUDA tensors makes a stream wait, and returns at once: the call is over when
its stream has come to its end, which the heartbeat asks for. When it began and ended is taken from
the events of the backend where it tells.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from ...record.slots import GroupSlot
from .. import torch_private
from ..record.recorder import Recorder
from .failed_work import has_failed


@dataclass
class _Followed:
    """A call of this number; `group` is None for messages, as the record has it."""

    recorder: Recorder
    group: GroupSlot | None
    number: int
    work: Any
    asked_again: bool = False


_followed: dict[Any, deque[_Followed]] = {}
"""By group, in the order of the calls: those of one group end in their order."""


def goes_on(work: Any) -> bool:
    """Whether the call is still under way though its wait has returned. In the capture of a CUDA
    graph nobody can tell."""
    if torch_private.capturing():
        return False
    try:
        return not work.is_completed()
    except Exception:
        return False  # the call's own failure, which the program gets to see elsewhere


def follow(recorder: Recorder, group: GroupSlot | None, number: int, work: Any) -> None:
    """Record the end of this call when its stream has come to it."""
    key = group if group is not None else number
    _followed.setdefault(key, deque()).append(_Followed(recorder, group, number, work))


def times_ns(work: Any) -> tuple[int, int]:
    """When a call that is over began and ended, by time.monotonic_ns(); 0 where nobody knows.

    distcore's works know both. torch's know how long it took, if it was told to take the time; the
    end is then when it was noticed.
    """
    known = getattr(work, "times_ns", None)
    if known is not None:
        span = known()
        return span if span is not None else (0, 0)
    try:
        duration_ns = round(float(work._get_duration()) * 1e6)
    except Exception:  # not timed, or a backend that does not
        return 0, 0
    now_ns = time.monotonic_ns()
    return now_ns - duration_ns, now_ns


def poll() -> None:
    """Record the ends of calls whose streams have come to them."""
    for key, calls in list(_followed.items()):
        while calls and _is_over(calls[0]):
            calls.popleft()
        if not calls:
            _followed.pop(key, None)


def _is_over(call: _Followed) -> bool:
    writer = call.recorder.writer
    try:
        if not call.work.is_completed():
            return False
        failed = has_failed(call.work)
    except Exception:  # the GPU cannot be asked any more
        failed = True
    if failed:
        writer.break_off(call.number, None)
        return True
    started_ns, ended_ns = times_ns(call.work)
    if not started_ns and hasattr(call.work, "times_ns") and not call.asked_again:
        call.asked_again = True  # it ended just now, and its own watchdog has not seen it yet
        return False
    writer.finish(call.number, None, started_ns, ended_ns)
    return True


def oldest() -> int | None:
    """The first call that is followed."""
    return min((calls[0].number for calls in list(_followed.values()) if calls), default=None)


def forget() -> None:
    """In a forked child: these calls are the parent's."""
    _followed.clear()

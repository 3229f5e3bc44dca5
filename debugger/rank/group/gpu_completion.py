"""Calls that the program has waited for, and whose GPU is not there yet.

A wait for a call on CUDA tensors makes a stream wait, and returns at once: the call is over when
its stream has come to its end, which the heartbeat asks for. When it began and ended is taken from
the events of the backend where it tells.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from time import monotonic_ns
from typing import Any

from torch.distributed import Work

from ...record.writing.slots import GroupSlot
from .. import torch_private
from ..record.recorder import Recorder
from . import outstanding
from .outstanding import MOST_UNFINISHED, Followed


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
    outstanding.followed.setdefault(key, deque()).append(Followed(recorder, group, number, work))


def failure_of(work: Any, streams: bool = False) -> BaseException | None:
    """Returns the error of the work, if it failed. `streams`: it is that of a call on a GPU.

    Asked of the work's futures: torch's own `Work.exception` and `is_success` print a warning that
    they are deprecated. NCCL's future is done as soon as the call is queued, whatever comes of it;
    what has come is in another one, as a number, 0 for success. gloo's sends and receives have no
    future; they become complete only in `wait()`, whose caller sees the error.
    """
    if type(work).exception is not Work.exception:
        failure: BaseException | None = work.exception()
        return failure
    try:
        result = work.get_future_result() if streams else None  # other backends would raise
        if result is not None and result.done() and result.value():
            return RuntimeError(f"the call failed on its GPU (torch's WorkResult {result.value()})")
    except Exception:  # nor has every backend of GPUs that
        pass
    try:
        future = work.get_future()
        if not future.done():
            return None
    except Exception:
        return None
    try:
        future.value()
    except Exception as error:
        return error
    return None


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
    now_ns = monotonic_ns()
    return now_ns - duration_ns, now_ns


def poll() -> None:
    """Record the ends of calls whose streams have come to them."""
    for key, calls in list(outstanding.followed.items()):
        while calls and _is_over(calls[0]):
            calls.popleft()
        if not calls:
            outstanding.followed.pop(key, None)


def _is_over(call: Followed) -> bool:
    writer = call.recorder.writer
    try:
        if not call.work.is_completed():
            return False
        failed = failure_of(call.work, streams=True) is not None
    except Exception:  # the GPU cannot be asked any more
        failed = True
    if failed:
        outstanding.broken.append(call.number)
        writer.break_off(call.number, None)
        return True
    started_ns, ended_ns = times_ns(call.work)
    if not started_ns and hasattr(call.work, "times_ns") and not call.asked_again:
        call.asked_again = True  # it ended just now, and its own watchdog has not seen it yet
        return False
    writer.finish(call.number, None, started_ns, ended_ns)
    return True


def unfinished() -> tuple[int, ...]:
    """The calls that are followed, and those that have failed meanwhile, in their order; of many
    the first ones of each group."""
    going_on = [
        call.number
        for calls in list(outstanding.followed.values())
        for call in islice(calls, MOST_UNFINISHED)
    ]
    return tuple(sorted({*outstanding.broken, *going_on}))[:MOST_UNFINISHED]


def oldest() -> int | None:
    """The first call that is followed."""
    followed = list(outstanding.followed.values())
    return min((calls[0].number for calls in followed if calls), default=None)

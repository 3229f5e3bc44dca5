"""Waits for a backend's work so that the thread can be freed: by a signal, or by a verdict.

gloo's collectives can be waited for in slices. Its sends and receives cannot (a timeout closes the
connection): they are waited for as they are, like the works of other backends, and a verdict ends
them by ending gloo's connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

SLICES = tuple(timedelta(milliseconds=ms) for ms in (20, 50, 100, 200))
NO_TIMEOUT = timedelta(0)
ENDLESS = timedelta(days=30)

WaitFunction = Callable[[Any, timedelta], Any]


def _no_verdict() -> None:
    """Until the layer is installed there is nothing that could end a wait."""


def _no_other(error: BaseException) -> BaseException:
    return error


expired: dict[int, str] = {}
"""Threads whose call was ended because its group's timeout ran out, and what to say of it."""
_check: Callable[[], None] = _no_verdict
_instead: Callable[[BaseException], BaseException] = _no_other


def set_verdict(
    check: Callable[[], None], instead: Callable[[BaseException], BaseException]
) -> None:
    """`check` is called between slices and raises when this wait must end. `instead` gives what
    to raise instead of an error of the backend."""
    global _check, _instead
    _check, _instead = check, instead


def check() -> None:
    """Raise the verdict of the run, if there is one."""
    _check()


def instead(error: BaseException) -> BaseException:
    """What to raise when a call ended with this error: the verdict, if there is one, for then the
    error is only that others went first."""
    better = _instead(error)
    if expired and better is error and isinstance(error, RuntimeError):
        words = expired.pop(threading.get_ident(), None)
        return error if words is None else RuntimeError(words)
    return better


def choose(backend: str, on_cpu: bool | None, point_to_point: bool) -> WaitFunction:
    """How to wait for a call of a group with this backend ("gloo", or "cpu:gloo,cuda:nccl").

    `on_cpu` tells of the call's tensors; None (a barrier) counts as gloo's only where the group
    has no other backend.
    """
    if ":" in backend:
        parts = dict(part.split(":", 1) for part in backend.split(","))
        if on_cpu is None:
            gloo = set(parts.values()) == {"gloo"}
        else:
            gloo = parts.get("cpu" if on_cpu else "cuda") == "gloo"
    else:
        gloo = backend == "gloo"
    if not gloo:
        return whole
    return whole if point_to_point else sliced


def whole(work: Any, timeout: timedelta) -> Any:
    """Wait in one piece."""
    return work.wait() if timeout == NO_TIMEOUT else work.wait(timeout)


def long(work: Any, timeout: timedelta) -> Any:
    """Wait for a message of gloo whose timeout `timeouts` keeps: gloo itself knows another."""
    return work.wait(ENDLESS if timeout == NO_TIMEOUT else timeout)


def sliced(work: Any, timeout: timedelta) -> Any:
    """Wait for a gloo collective, with Python running in between."""
    left = timeout
    index = 0
    while True:
        step = SLICES[index]
        if index < len(SLICES) - 1:
            index += 1
        if timeout != NO_TIMEOUT:
            if left <= step:
                return work.wait(max(left, timedelta(milliseconds=1)))
            left -= step
        try:
            return work.wait(step)
        except RuntimeError:  # the slice is over, or the call failed, or the one and then the other
            over = bool(work.is_completed())
        if over:
            return work.wait()  # at once: its own result or its own error
        _check()

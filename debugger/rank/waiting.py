"""Waits for a backend's work so that the thread can be freed: by a signal, or by a verdict.

gloo's collectives can be waited for in slices. Its sends and receives cannot (a timeout closes the
connection), so a helper thread waits for them, and the caller waits for the helper. Works of other
backends are waited for as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

SLICES = tuple(timedelta(milliseconds=ms) for ms in (20, 50, 100, 200))
NO_TIMEOUT = timedelta(0)

WaitFunction = Callable[[Any, timedelta], Any]


def _no_verdict() -> None:
    """Until the layer is installed there is nothing that could end a wait."""


def _no_other(error: BaseException) -> BaseException:
    return error


_check: Callable[[], None] = _no_verdict
_instead: Callable[[BaseException], BaseException] = _no_other


def set_verdict(
    check: Callable[[], None], instead: Callable[[BaseException], BaseException]
) -> None:
    """`check` is called between slices and raises when this wait must end. `instead` gives what
    to raise instead of an error of the backend."""
    global _check, _instead
    _check, _instead = check, instead


def instead(error: BaseException) -> BaseException:
    """What to raise when a call ended with this error: the verdict, if there is one, for then the
    error is only that others went first."""
    return _instead(error)


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
    return helped if point_to_point else sliced


def whole(work: Any, timeout: timedelta) -> Any:
    """Wait in one piece: for backends whose waits are short or interruptible by themselves."""
    return work.wait() if timeout == NO_TIMEOUT else work.wait(timeout)


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


class _Desk:
    """What a helper and its thread share; the thread must not keep the helper itself alive."""

    def __init__(self) -> None:
        self.request = threading.Lock()
        self.reply = threading.Lock()
        self.request.acquire()
        self.reply.acquire()
        self.job: tuple[Any, timedelta] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.closed = False


def _serve(desk: _Desk) -> None:
    while True:
        desk.request.acquire()
        if desk.closed:
            return
        work, timeout = desk.job or (None, NO_TIMEOUT)
        desk.job = None
        try:
            desk.result = whole(work, timeout)
        except BaseException as error:
            desk.error = error
        work = None
        desk.reply.release()


class _Helper:
    """A thread that waits in the caller's place, one work at a time. It ends with its caller's
    thread, for programs that start a thread for each message."""

    def __init__(self) -> None:
        self.desk = _Desk()
        threading.Thread(
            target=_serve, args=(self.desk,), name="distdebug-wait", daemon=True
        ).start()

    def __del__(self) -> None:
        desk = self.desk
        desk.closed = True
        if desk.request.locked():
            desk.request.release()

    def wait(self, work: Any, timeout: timedelta) -> Any:
        desk = self.desk
        desk.job = (work, timeout)
        desk.result = desk.error = None
        desk.request.release()
        while not desk.reply.acquire(timeout=0.2):
            _check()
        error, desk.error = desk.error, None
        if error is not None:
            raise error
        result, desk.result = desk.result, None
        return result


_local = threading.local()


def forget_helpers() -> None:
    """In a forked child: the helper threads stayed behind in the parent."""
    global _local
    _local = threading.local()


def helped(work: Any, timeout: timedelta) -> Any:
    """Wait for a gloo send or receive."""
    helper: _Helper | None = getattr(_local, "helper", None)
    if helper is None:
        helper = _local.helper = _Helper()
    try:
        return helper.wait(work, timeout)
    except BaseException:
        _local.helper = None  # it may still be waiting: leave it behind
        raise

"""Waits for a backend's work so that the thread can be freed: by a signal, or by a verdict.

gloo's collectives can be waited for in slices. Its sends and receives cannot (a timeout closes the
connection): they are waited for as they are, like the works of other backends, and a verdict ends
them by ending gloo's connections.

Here are also the works that stand for others: one that does what it is asked to do by another one,
and one of a call that is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import Work

from ...record.wording import by_device
from ..log.rank_log import is_interruption

SLICES = tuple(timedelta(milliseconds=ms) for ms in (20, 50, 100, 200))
NO_TIMEOUT = timedelta(0)
ENDLESS = timedelta(days=30)

WaitFunction = Callable[[Any, timedelta], Any]


class NoVerdict:
    """Nothing ends a wait: what a run's verdict, which may, takes the place of."""

    def check(self) -> None:
        """Called between slices; raises where this wait must end."""

    def instead(self, error: BaseException) -> BaseException:
        """Returns the error to raise instead of one of the backend."""
        return error


class BackendWaits:
    """The waits of this process for works: until the verdict of the run is there."""

    def __init__(self, verdict: NoVerdict) -> None:
        self._verdict = verdict
        self.check = verdict.check
        """Raises the verdict of the run, if there is one."""
        self.expired: dict[int, str] = {}
        """Threads whose call was ended because its group's timeout ran out, and what to say of
        it."""

    def instead(self, error: BaseException) -> BaseException:
        """Returns the error to raise when a call ended with this one: the verdict, if there is one,
        for then the error is only that others went first."""
        better = self._verdict.instead(error)
        if self.expired and better is error and isinstance(error, RuntimeError):
            words = self.expired.pop(threading.get_ident(), None)
            return error if words is None else RuntimeError(words)
        return better

    def choose(self, backend: str, on_cpu: bool | None, point_to_point: bool) -> WaitFunction:
        """Chooses how to wait for a call of a group with this backend ("gloo", or
        "cpu:gloo,cuda:nccl").

        `on_cpu` tells of the call's tensors; None (a barrier) counts as gloo's only where the group
        has no other backend.
        """
        parts = by_device(backend)
        if on_cpu is None:
            gloo = set(parts.values()) == {"gloo"}
        else:
            gloo = parts.get("cpu" if on_cpu else "cuda", parts.get("")) == "gloo"
        if not gloo:
            return whole
        return whole if point_to_point else self.sliced

    def sliced(self, work: Any, timeout: timedelta) -> Any:
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
            except RuntimeError as error:
                ended = error
            # The slice is over, or the call failed, or the one, then the other. Outside of the
            # clause: a Ctrl-C that comes now has nothing to do with the end of a slice.
            if is_interruption(ended):
                raise ended
            del ended  # it holds this frame, and all that the frame knows
            if work.is_completed():
                return work.wait()  # at once: its own result or its own error
            self.check()


def whole(work: Any, timeout: timedelta) -> Any:
    """Wait in one piece."""
    return work.wait() if timeout == NO_TIMEOUT else work.wait(timeout)


def long(work: Any, timeout: timedelta) -> Any:
    """Wait for a message of gloo whose timeout `timeouts` keeps: gloo itself knows another."""
    return work.wait(ENDLESS if timeout == NO_TIMEOUT else timeout)


class ForwardingWork(Work):
    """Everything that torch asks a work is asked of `_work`, but for what a subclass answers."""

    __slots__ = ()

    _work: Any

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits as the work itself does."""
        work = self._work
        return bool(work.wait() if timeout == NO_TIMEOUT else work.wait(timeout))

    if hasattr(Work, "_get_sequence_number"):  # from torch 2.15 on, as the method of that name

        @property
        def timeout(self) -> timedelta:
            """The call's own, of its backend."""
            own: timedelta = self._work.timeout
            return own


def _forwarded(name: str) -> Callable[[ForwardingWork], Any]:
    return lambda work: getattr(work._work, name)()


for _name in (
    *("is_completed", "is_success", "exception", "result", "synchronize", "block_current_stream"),
    *("source_rank", "_source_rank", "_get_op_type", "_get_duration", "_get_sequence_number"),
    *("get_future", "get_future_result"),
):
    if hasattr(Work, _name):
        setattr(ForwardingWork, _name, _forwarded(_name))


class OverWork(Work):
    """The work of a call that is over, or was never made: a wait returns at once."""

    def wait(self, _timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

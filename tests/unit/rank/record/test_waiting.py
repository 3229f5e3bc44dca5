"""A wait in slices: what ends it, and what must not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType

import pytest

from distdebug.rank.record.waiting import NO_TIMEOUT, BackendWaits, NoVerdict


class Work:
    """As gloo's: each entry of `ends` is what one more slice comes to."""

    def __init__(self, *ends: str) -> None:
        self._ends = list(ends)
        self._done = False

    def wait(self, _step: timedelta | None = None) -> bool:
        end = self._ends.pop(0) if self._ends else "done"
        self._done = end in ("done", "done as the alarm comes")
        if end.endswith("the alarm comes"):
            os.kill(os.getpid(), signal.SIGUSR1)
        if not self._done:
            raise RuntimeError("Operation timed out!")
        return True

    def is_completed(self) -> bool:
        return self._done


class TimeIsUpError(RuntimeError):
    """Of the type that gloo's own errors have."""


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    def handler(_number: int, _frame: FrameType | None) -> None:
        raise TimeIsUpError("the program's own")

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_slices_that_are_over_are_followed_by_others() -> None:
    assert BackendWaits(NoVerdict()).sliced(Work("late", "late", "late"), NO_TIMEOUT)


@pytest.mark.parametrize("end", ["done as the alarm comes", "late as the alarm comes"])
def test_what_a_handler_raises_is_no_slice_that_is_over(end: str) -> None:
    """Whether the call completes in the very slice in which the signal comes, or not."""
    with pytest.raises(TimeIsUpError):
        BackendWaits(NoVerdict()).sliced(Work("late", end), NO_TIMEOUT)


class InterruptedWork(Work):
    """Ctrl-C comes just behind a slice that was over."""

    def is_completed(self) -> bool:
        raise KeyboardInterrupt


def test_the_end_of_a_slice_is_no_error_that_ctrl_c_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        BackendWaits(NoVerdict()).sliced(InterruptedWork("late"), NO_TIMEOUT)
    assert raised.value.__context__ is None

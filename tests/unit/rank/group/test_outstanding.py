"""Which dropped handles count: those of unfinished calls that the program itself let go."""

from __future__ import annotations

import _thread
import sys
import threading
import weakref
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.rank.group import outstanding
from distdebug.rank.replicas.check import is_due


class Handle:
    pass


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    outstanding.forget()
    yield
    outstanding.forget()


def call(number: int, complete: bool) -> Handle:
    handle: Any = Handle()
    work = SimpleNamespace(is_completed=lambda: complete)
    outstanding.watch(handle, number, work)
    return handle


def test_dropped_unfinished() -> None:
    handle = call(1, complete=False)
    finished = call(2, complete=True)
    over = call(3, complete=False)
    outstanding.remove(3)
    del handle, finished, over
    assert list(outstanding.unwaited) == [1]


def test_left_behind_by_an_exception() -> None:
    handle = call(1, complete=False)
    try:
        raise ValueError
    except ValueError:
        del handle
    assert not outstanding.unwaited


def test_dropped_by_a_thread_without_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of C++ has no code of the program to blame."""
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    done = threading.Event()
    last = Handle()
    told = weakref.ref(last, lambda _: done.set())
    handles = [last, call(1, complete=False)]
    del last
    _thread.start_new_thread(handles.clear, ())  # from the end
    assert done.wait(30)
    assert told() is None
    assert not errors
    assert not outstanding.unwaited


def test_coalesced() -> None:
    outstanding.gather(True)
    handle = call(1, complete=False)
    del handle
    outstanding.gather(False)
    assert not outstanding.unwaited
    handle = call(2, complete=False)
    del handle
    assert list(outstanding.unwaited) == [2]


def test_never_looked_at() -> None:
    handles: list[Any] = [call(1, complete=False), call(2, complete=True), call(3, complete=False)]
    outstanding.awaited[3] = handles[2]
    assert outstanding.pending() == [1]


@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 5, 10])
def test_moments_are_picked_evenly(every: int, stride: int) -> None:
    """Whatever the number of collectives between two steps."""
    picked = [step for step in range(700) if is_due(5 + step * stride, every)]
    assert 0.9 * 700 / every <= len(picked) <= 1.1 * 700 / every
    gaps = [after - before for before, after in pairwise(picked)]
    assert max(gaps) <= 6 * every

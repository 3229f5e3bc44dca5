"""A deadline that has passed is put off by as long as a debugger held a rank meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from distcore.base import deadline
from distcore.base.deadline import Deadline, extended


@pytest.fixture
def held() -> Iterator[list[float]]:
    """Its only element: for how many seconds a rank was held."""
    seconds = [0.0]
    deadline.set_held(lambda _began, _now: seconds[0])
    yield seconds
    deadline.set_held(lambda _began, _now: 0.0)


def test_a_deadline_is_a_moment() -> None:
    before = time.monotonic()
    deadline = Deadline.after(5)
    assert before + 5 <= deadline <= time.monotonic() + 5


def test_nobody_was_held(held: list[float]) -> None:
    assert held == [0.0]
    deadline = Deadline.after(5)
    assert extended(deadline) == deadline


def test_put_off_by_the_whole_time_and_not_twice(held: list[float]) -> None:
    deadline = Deadline.after(5)
    held[0] = 8.0
    later = extended(deadline)
    assert later == pytest.approx(deadline + 8)
    assert extended(later) == later
    held[0] = 9.0
    assert extended(later) == pytest.approx(deadline + 9)


def test_a_plain_number_stays(held: list[float]) -> None:
    held[0] = 8.0
    assert extended(7.0) == 7.0

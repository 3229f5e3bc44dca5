"""Which errors the handler of a signal has raised, while other code ran."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from distdebug.rank.log.rank_log import is_interruption


class TimeIsUpError(RuntimeError):
    pass


def handler(_number: int, _frame: FrameType | None, *_more: object) -> None:
    raise TimeIsUpError("by the handler")


class Watchdog:
    def bark(self, _number: int, _frame: FrameType | None) -> None:
        raise TimeIsUpError("by a method")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.bark(number, frame)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "act",
    [
        handler,
        functools.partial(functools.partial(handler)),
        Watchdog().bark,
        Watchdog(),
        lambda number, frame: handler(number, frame),
    ],
    ids=["function", "partial", "method", "object", "lambda"],
)
def test_what_a_handler_raises(act: Callable[..., Any]) -> None:
    signal.signal(signal.SIGUSR1, act)
    with pytest.raises(TimeIsUpError) as found:
        signal.raise_signal(signal.SIGUSR1)
    assert is_interruption(found.value)


def test_what_the_code_itself_raises() -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeIsUpError) as found:
        Watchdog().bark(0, None)
    assert not is_interruption(found.value)
    with pytest.raises(ValueError, match="invalid literal") as wrong:
        int("x")
    assert not is_interruption(wrong.value)
    assert is_interruption(KeyboardInterrupt())
